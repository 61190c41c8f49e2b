"""Runs that wait for runs, while workers and their children are killed."""

from __future__ import annotations

from collections import Counter

import pytest

from flowengine.errors import RunFailed
from tests.acceptance.celery import graphs
from tests.acceptance.celery.mixed_load import Killer
from tests.acceptance.celery.rows import wait_for
from tests.celery_nodes import Fleet

RUNS = 8


def test_runs_wait_for_runs_while_processes_die(fleet: Fleet) -> None:
    seen = {run.id for run in fleet.engine.list(limit=100_000)}
    parents = {fleet.start(graphs.family, n=n).id: n for n in range(RUNS)}
    killer = Killer(fleet, seed=5)
    for what in ("child", "child", "worker", "child"):
        killer.wait(0.3)
        killer.kill(what)
    wait_for(fleet.engine, [fleet.engine.run(run_id) for run_id in parents], 90)
    outputs = {parents[run_id]: fleet.engine.get(run_id).outputs for run_id in parents}
    assert outputs == {n: {"result": n * n + 30} for n in range(RUNS)}
    started = [run for run in fleet.engine.list(limit=100_000) if run.id not in seen]
    children = Counter(run.parent for run in started if run.parent is not None)
    assert children == dict.fromkeys(parents, 5), "each once, however often it was tried"
    assert {run.state for run in started} == {"COMPLETED"}


def test_pool_children_that_wait_for_runs_fail_at_once_with_the_cure(fleet: Fleet) -> None:
    runs = [fleet.start(graphs.impatient, n=n) for n in range(8)]  # more than pool children
    for run in runs:
        with pytest.raises(RunFailed, match=r"WaitInsideStep.*other\.call"):
            run.result(timeout=30)

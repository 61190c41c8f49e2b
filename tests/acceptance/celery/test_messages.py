"""Messages that are lost, duplicated or reordered cost time and nothing else."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.acceptance.celery import graphs
from tests.acceptance.celery.conftest import GRAPHS, QUICK_START, MakeFleet
from tests.acceptance.celery.rows import check_runs, wait_for
from tests.celery_nodes import Fleet


@pytest.fixture(scope="module")
def module_fleet(make_fleet: MakeFleet, chaos_seed: int) -> Fleet:
    fleet = make_fleet(imports=f"{GRAPHS},{LOSSY}", LOSSY_SEED=str(chaos_seed))
    for name in ("first", "second"):
        fleet.add_worker(name, *QUICK_START, wait=False)
    fleet.add_beat()
    return fleet


# Named, not imported: importing it would disturb this process's messages too.
LOSSY = "tests.acceptance.celery.lossy"


def run_with_lost_messages(fleet: Fleet, count: int, width: int, seconds: float, seed: int) -> None:
    runs: dict[str, Any] = {}
    for n in range(count):
        runs[fleet.start(graphs.mixed, n=n).id] = graphs.expected(n)
    wide = fleet.start(graphs.wide, numbers=list(range(width)))
    handles = [fleet.engine.run(run_id) for run_id in runs]
    wait_for(fleet.engine, [*handles, wide], seconds)
    counters = check_runs(fleet.engine, runs, graphs.TASKS)
    assert (counters.lost, counters.failed) == (0, 0)
    counters = check_runs(fleet.engine, {wide.id: sum(n * n for n in range(width))}, width + 1)
    assert (counters.lost, counters.failed) == (0, 0)
    fates: Counter[str] = Counter()
    for path in fleet.traces.glob("messages-*"):
        fates.update(path.read_text().split())
    print(f"\nseed {seed}: {count} runs; messages {dict(fates)}")
    assert fates["lost"] > 5
    assert fates["duplicated"] > 5


def test_all_runs_complete_although_messages_are_lost_duplicated_and_reordered(
    fleet: Fleet, chaos_seed: int
) -> None:
    run_with_lost_messages(fleet, 10, 120, seconds=60, seed=chaos_seed)


@pytest.mark.chaos
def test_two_hundred_runs_complete_although_messages_are_lost(
    fleet: Fleet, chaos_seed: int
) -> None:
    run_with_lost_messages(fleet, 200, 3000, seconds=600, seed=chaos_seed)

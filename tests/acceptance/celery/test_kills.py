"""Pool children, workers and the beat are killed while runs go on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.acceptance.celery import graphs
from tests.acceptance.celery.mixed_load import runs_under_fire
from tests.acceptance.celery.rows import check_runs, wait_for
from tests.celery_nodes import Fleet, until


def test_kills_at_random_moments_lose_nothing_and_record_nothing_twice(
    fleet: Fleet, chaos_seed: int
) -> None:
    plan = [*["child"] * 5, *["worker"] * 2, "beat"]
    runs_under_fire(fleet, chaos_seed, 20, plan, longest=0.8)


def test_without_a_beat_a_worker_looks_after_the_runs_of_a_dead_one(fleet: Fleet) -> None:
    fleet.beats[0].kill()
    run = fleet.start(graphs.held_then_added, name="orphan")
    (pid,) = until(lambda: fleet.begun("orphan"), "a step's begin")
    (victim,) = [worker for worker in fleet.workers if pid in worker.children()]
    victim.kill()
    pids = until(
        lambda: fleet.begun("orphan") if len(fleet.begun("orphan")) > 1 else None, "another try"
    )
    fleet.let_go("orphan")
    assert run.result(timeout=20) == pids[1]
    losses = [(task.state, task.losses) for task in fleet.engine.tasks(run.id)]
    assert losses == [("failed", 0), ("completed", 1), ("completed", 0)]


def test_without_a_beat_runs_go_on(fleet: Fleet) -> None:
    fleet.beats[0].kill()
    with fleet.engine.database.write() as connection:  # committed, and never rung for
        run = fleet.engine.start(
            graphs.mixed.program(), graphs.mixed.name, {"n": 1}, connection=connection
        )
        connection.info.clear()
    assert run.result(timeout=30) == graphs.expected(1)


def test_runs_go_on_when_the_beat_is_back(fleet: Fleet) -> None:
    heard = fleet.count_logged("Task flowengine.watchdog")
    until(lambda: fleet.count_logged("Task flowengine.watchdog") > heard + 5, "ticks")
    runs: dict[str, Any] = {fleet.start(graphs.mixed, n=3).id: graphs.expected(3)}
    wait_for(fleet.engine, [fleet.engine.run(run_id) for run_id in runs], 30)
    check_runs(fleet.engine, runs, graphs.TASKS)


@pytest.mark.chaos
@pytest.mark.parametrize("round_number", range(3))
def test_two_hundred_runs_under_many_kills(
    fleet: Fleet, chaos_seed: int, round_number: int
) -> None:
    plan = [*["child"] * 40, *["worker"] * 12, "beat"]
    runs_under_fire(fleet, chaos_seed + round_number, 200, plan, longest=1.5)

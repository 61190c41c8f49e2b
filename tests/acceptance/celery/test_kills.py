"""Pool children, workers and the beat are killed while runs are in progress."""

from __future__ import annotations

import re

import pytest

from tests.acceptance.celery import graphs
from tests.acceptance.celery.mixed_load import run_under_kills, start_mixed, wait_and_check
from tests.celery_nodes import Fleet, until


def test_kills_at_random_moments_lose_no_run_and_record_no_result_twice(
    fleet: Fleet, chaos_seed: int
) -> None:
    plan = [*["child"] * 5, *["worker"] * 2, "beat"]
    run_under_kills(fleet, chaos_seed, 20, plan, longest=0.8)


def test_without_a_beat_workers_recover_the_tasks_of_a_dead_worker(fleet: Fleet) -> None:
    fleet.beats[0].kill()
    run = fleet.start(graphs.held_then_added, name="orphan")
    (pid,) = until(lambda: fleet.begun("orphan"), "the start of the step")
    (victim,) = [worker for worker in fleet.workers if pid in worker.children()]
    victim.kill()
    pids = until(
        lambda: fleet.begun("orphan") if len(fleet.begun("orphan")) > 1 else None, "another try"
    )
    fleet.let_go("orphan")
    assert run.result(timeout=20) == pids[1]
    losses = [(task.state, task.losses) for task in fleet.engine.tasks(run.id)]
    assert losses == [("failed", 0), ("completed", 1), ("completed", 0)]


def test_without_a_beat_workers_find_tasks_whose_wake_up_was_lost(fleet: Fleet) -> None:
    fleet.beats[0].kill()
    with fleet.engine.database.write() as session:  # committed, and no wake-up sent
        run = fleet.engine.start(
            graphs.mixed.program(), graphs.mixed.name, {"n": 1}, connection=session.connection
        )
        session.connection.info.clear()
    assert run.result(timeout=30) == graphs.expected(1)


def test_ticks_and_runs_go_on_when_a_killed_beat_is_restarted(fleet: Fleet) -> None:
    (beat,) = fleet.beats
    with fleet.broker.client as client:
        client.delete("unacked")  # messages of killed workers stay there for an hour
        beat.kill()
        until(lambda: not client.llen("flowengine"), "an empty control queue")
        until(lambda: not client.hlen("unacked"), "the end of the ticks that workers have")
    before = ticks(fleet)
    runs = start_mixed(fleet, 2)
    wait_and_check(fleet, runs)
    assert ticks(fleet) == before, "nothing ticks while the beat is dead"
    beat.start()
    until(lambda: ticks(fleet) >= before + 3, "ticks of the restarted beat")
    wait_and_check(fleet, start_mixed(fleet, 2))


def ticks(fleet: Fleet) -> int:
    """How many ticks of the beat workers have received."""
    received = re.compile(r"Task flowengine\.watchdog\[\S+\] received")
    return len(received.findall(fleet.logs()))


@pytest.mark.chaos
@pytest.mark.parametrize("round_number", range(3))
def test_two_hundred_runs_under_many_kills(
    fleet: Fleet, chaos_seed: int, round_number: int
) -> None:
    plan = [*["child"] * 40, *["worker"] * 12, "beat"]
    run_under_kills(fleet, chaos_seed + round_number, 200, plan, longest=1.5)

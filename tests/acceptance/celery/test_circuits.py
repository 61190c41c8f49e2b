"""A service goes down under four processes: its circuit opens for all of them at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from flowengine.engine import Run
from flowengine.evaluator import TaskDefinition, TaskState
from flowengine.messaging import CircuitState, SyncCircuitBreaker
from flowengine.worker.breakers import KEY_PREFIX
from tests.acceptance.celery import services
from tests.acceptance.celery.conftest import QUICK_START, MakeFleet
from tests.celery_nodes import Fleet, until

MANY = 120  #: more than one batch: they go as a chord, and leave it when they are parked


@pytest.fixture(scope="module")
def four_processes(make_fleet: MakeFleet) -> Fleet:
    fleet = make_fleet(imports=services.__name__)
    for name in ("first", "second"):
        fleet.add_worker(name, *QUICK_START, "-c", "2", wait=False)
    fleet.add_beat()
    fleet.heal()
    return fleet


@pytest.fixture
def fleet(four_processes: Fleet) -> Iterator[Fleet]:
    four_processes.heal()
    yield four_processes
    four_processes.let_all_go()


def parked(fleet: Fleet, run: Run[Any]) -> list[TaskDefinition]:
    """The tasks of a run that wait for their circuit, or did."""
    tasks = fleet.engine.tasks(run.id)
    return [task for task in tasks if task.state == TaskState.PENDING and task.lease > 0]


def circuit_state(fleet: Fleet, name: str) -> CircuitState:
    with redis.Redis.from_url(fleet.broker.url) as client:
        return SyncCircuitBreaker(client, name, key_prefix=KEY_PREFIX).snapshot().state


def failures(fleet: Fleet, service: str) -> int:
    return len(list(fleet.traces.glob(f"failed-{service}-*")))


def test_tasks_wait_while_a_service_is_down_and_all_complete_when_it_is_back(
    fleet: Fleet,
) -> None:
    (fleet.traces / "down-payments").touch()
    run = fleet.start(services.pay_all, numbers=list(range(MANY)))
    until(lambda: circuit_state(fleet, "payments") is not CircuitState.CLOSED, "an open circuit")
    # All of them: one that was let through before it opened may find the service well.
    until(lambda: len(parked(fleet, run)) == MANY, "parked tasks")
    never_tried = [task for task in parked(fleet, run) if task.try_number == 1]
    assert len(never_tried) >= MANY // 2
    assert not any(task.losses for task in fleet.engine.tasks(run.id))
    assert not run.info().is_final

    # It is back, and slow: the tries that are let through stay there until they may go.
    (fleet.traces / "down-payments").unlink()
    until(lambda: len(fleet.begun("payments")) == 2, "two probes")
    unfinished = [task for task in fleet.engine.tasks(run.id) if task.state != TaskState.FAILED]
    assert len(unfinished) == MANY

    def others_asked_again() -> bool:
        leases = {task.uuid: task.lease for task in fleet.engine.tasks(run.id)}
        return sum(leases[task.uuid] >= task.lease + 2 for task in unfinished) >= MANY - 2

    until(others_asked_again, "two more rounds of asking")
    assert len(fleet.begun("payments")) == 2, "no third one while two are under way"

    fleet.let_go("payments")
    assert run.result(timeout=60) == list(range(MANY))
    assert circuit_state(fleet, "payments") is CircuitState.CLOSED
    tries = fleet.engine.tasks(run.id)
    failed = [task for task in tries if task.state == TaskState.FAILED]
    assert len(failed) == failures(fleet, "payments"), "what was not called has not failed"
    assert len(tries) == MANY + len(failed)


def test_the_death_of_a_probe_makes_room_for_another(fleet: Fleet) -> None:
    (fleet.traces / "down-letters").touch()
    run = fleet.start(services.post_all, numbers=[1, 2, 3, 4])
    until(lambda: circuit_state(fleet, "letters") is not CircuitState.CLOSED, "an open circuit")
    until(lambda: len(parked(fleet, run)) == 4, "parked tasks")
    (fleet.traces / "down-letters").unlink()
    (pid,) = until(lambda: fleet.begun("letters"), "a probe")
    os.kill(pid, signal.SIGKILL)
    until(lambda: len(fleet.begun("letters")) > 1, "another probe")
    fleet.let_go("letters")
    assert run.result(timeout=60) == [1, 2, 3, 4]
    assert max(task.losses for task in fleet.engine.tasks(run.id)) == 1


def test_a_breaker_that_is_held_open_stops_all_processes_until_it_is_reset(fleet: Fleet) -> None:
    fleet.let_go("payments")
    before = len(fleet.begun("payments"))
    fleet.engine.breakers.hold_open("payments", actor="eva", reason="their release")

    held: list[Run[Any]] = []

    def is_obeyed() -> bool:
        """Whether all of a new run is parked: each process reads the change by itself."""
        run = fleet.start(services.pay_all, numbers=list(range(20)))
        held.append(run)
        open_tasks = (TaskState.PENDING, TaskState.RUNNING)

        def has_settled() -> bool:
            tasks = [task for task in fleet.engine.tasks(run.id) if task.state in open_tasks]
            return run.info().is_final or 0 < len(tasks) == len(parked(fleet, run))

        until(has_settled, "an end, or a stop")
        return len(parked(fleet, run)) == 20

    until(is_obeyed, "a held breaker", seconds=60)
    begun = len(fleet.begun("payments"))
    assert begun - before <= 20 * (len(held) - 1), "the last run has called nothing"
    (info,) = [each for each in fleet.engine.breakers.list() if each.name == "payments"]
    assert (info.state, info.set_reason) == ("held open", "their release")
    assert info.parked >= 20
    fleet.engine.breakers.reset("payments", actor="eva")
    for run in held:
        assert run.result(timeout=90) == list(range(20))

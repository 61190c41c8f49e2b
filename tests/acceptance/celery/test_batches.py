"""Quick steps are taken together and gone on with, and nobody suffers from it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from flowengine.engine import Run
from flowengine.errors import RunFailed
from flowengine.evaluator import TaskState
from tests.acceptance.celery import chains, graphs
from tests.acceptance.celery.conftest import GRAPHS, QUICK_START, MakeFleet
from tests.celery_nodes import Fleet, until


@pytest.fixture(scope="module")
def alone(make_fleet: MakeFleet) -> Fleet:
    """One worker with one pool child, so that one process runs everything."""
    fleet = make_fleet(imports=f"{GRAPHS},{chains.__name__}")
    fleet.add_worker("alone", *QUICK_START, "-c", "1", "-E")
    fleet.add_beat()
    return fleet


@pytest.fixture
def practised(alone: Fleet) -> Iterator[Fleet]:
    """The same, and it knows that the steps are quick."""
    alone.heal()
    for _ in range(3):
        alone.start(graphs.touched, holds=-1, kills=-1).result(timeout=30)
    yield alone
    alone.let_all_go()


def states(fleet: Fleet, run: Run[Any]) -> list[str]:
    return [task.state for task in fleet.engine.tasks(run.id)]


def test_a_step_that_turns_out_slow_does_not_hold_up_those_around_it(
    make_fleet: MakeFleet, practised: Fleet
) -> None:
    # They are in one batch of one child; a second child is there to take them over.
    other = practised.add_worker("other", *QUICK_START, "-c", "1")
    run = practised.start(graphs.touched, holds=7, kills=-1)
    until(lambda: practised.begun("touch-7"), "the slow one's begin")
    until(lambda: states(practised, run).count(TaskState.COMPLETED) == 39, "the end of all others")
    assert states(practised, run).count(TaskState.RUNNING) == 1
    practised.let_go("touch-7")
    assert run.result(timeout=30) == list(range(40))
    assert {t.losses for t in practised.engine.tasks(run.id)} == {0}
    other.stop()
    practised.workers.remove(other)


def test_only_the_task_that_kills_its_worker_fails_of_a_batch(practised: Fleet) -> None:
    run = practised.start(graphs.touched, holds=-1, kills=7)
    with pytest.raises(RunFailed, match="its worker died 4 times, 3 losses are allowed"):
        run.result(timeout=60)
    tries = practised.engine.tasks(run.id)
    mates = [t for t in tries if not t.step_path.endswith("[7].touch")]
    # Tries that had finished without a committed report ran twice, and are counted as lost once.
    assert {t.losses for t in mates} <= {0, 1}
    assert [t.state for t in mates].count(TaskState.COMPLETED) == 39
    culprit = [(t.state, t.losses) for t in tries if t.step_path.endswith("[7].touch")]
    assert culprit == [(TaskState.FAILED, losses) for losses in range(4)]


def test_a_long_chain_does_not_starve_other_runs(practised: Fleet) -> None:
    chain = practised.start(chains.long_chain, n=1)
    others = [practised.start(graphs.short_chain, n=n) for n in range(5)]
    for n, run in enumerate(others):
        assert run.result(timeout=30) == n
    assert chain.info().state == "RUNNING", "it takes many times as long as they do"
    assert chain.result(timeout=60) == 1


def test_the_urgent_comes_first(practised: Fleet) -> None:
    block = practised.start(graphs.held, name="the queue")
    until(lambda: practised.begun("the queue"), "a step that holds the only child")
    usual = [practised.start(chains.long_chain, n=n) for n in range(4)]
    hurry = graphs.short_chain
    urgent = practised.engine.start(hurry.program(), hurry.name, {"n": 1}, priority=10)
    practised.let_go("the queue")
    assert urgent.outputs(timeout=30) == {"result": 1}
    assert {run.info().state for run in usual} == {"RUNNING"}
    for run in usual:
        run.result(timeout=60)
    block.result(timeout=30)


def test_steps_of_a_continuation_are_shown_to_flower(practised: Fleet) -> None:
    shown: list[dict[str, Any]] = []
    connection = practised.app.connection_for_read()
    receiver = practised.app.events.Receiver(connection, handlers={"*": shown.append})
    listening = threading.Thread(target=receiver.capture, kwargs={"wakeup": False})
    listening.start()
    until(lambda: any(e["type"] == "worker-heartbeat" for e in shown), "a connected receiver")
    run = practised.start(graphs.short_chain, n=1)
    run.result(timeout=30)
    paths = {task.step_path for task in practised.engine.tasks(run.id)}

    def received() -> list[dict[str, Any]]:
        named = [event for event in shown if event["type"] == "task-received"]
        return [event for event in named if run.id[:8] in event["args"]]

    until(lambda: len(received()) == len(paths), "an event of each step")
    assert all(any(repr(path) in event["args"] for event in received()) for path in paths)
    assert {event["name"] for event in received()} == {graphs.touch.name}
    internal = [e for e in shown if e.get("name", "").startswith("flowengine.")]
    assert internal == [], "wake-ups are not shown"
    receiver.should_stop = True
    listening.join()
    connection.close()

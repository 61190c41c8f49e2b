"""Steps as Flower sees them: the newest tries of a facet, and the count of all."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from celery import Celery

from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import Failed, Outcome, Succeeded
from flowengine.tasks.flower_events import StepEvents


@pytest.fixture
def app() -> Celery:
    # The transport is shared by the whole process, so the exchange has a name of its own.
    app = Celery("flower", broker="memory://", set_as_current=False)
    app.conf.event_exchange = app.conf.event_queue_prefix = f"events-{uuid.uuid4().hex}"
    return app


def received(app: Celery, shown: list[tuple[str, Outcome]], ring: int, children: int = 1) -> Any:
    """Return the state of a Flower that has received the events of these tries."""
    state = app.events.State(max_tasks_in_memory=100_000)
    count = 0

    def take(event: dict[str, Any]) -> None:
        nonlocal count
        state.event(event)
        count += 1

    with app.connection_for_read() as ours:
        receiver = app.events.Receiver(ours, handlers={"*": take})
        with receiver.consumer_context() as (connection, _, _):
            for _ in range(children):  # each takes the place of the one before
                events = StepEvents(app, "w@host", ring)
                for n, (facet, outcome) in enumerate(shown):
                    task = TaskDefinition(uuid.uuid4().hex, facet, "", f"run{n}", "", "s")
                    task.step_path = f"W[{n}].s"
                    events.show(task, outcome, 0.1)
                events.flush()
            while count < 3 * len(shown) * children:
                try:
                    connection.drain_events(timeout=5)
                except TimeoutError:
                    pytest.fail(f"{count} events")
    return state


def failed(n: int) -> Failed:
    return Failed({"type": "ValueError", "message": f"number {n}"})


def test_flower_keeps_the_newest_tries_of_a_facet(app: Celery) -> None:
    shown: list[tuple[str, Outcome]] = [("f", Succeeded({"result": n})) for n in range(300)]
    shown += [("g", Succeeded({"result": n})) for n in range(300)]
    shown += [("f", failed(n)) for n in range(5)]
    state = received(app, shown, ring=20, children=3)
    assert len(state.tasks) == 20 + 20 + 5
    assert state.task_count == 3 * len(shown), "its metrics count all"
    of_f = [task for task in state.tasks.values() if task.name == "f"]
    assert sorted(t.state for t in of_f) == ["FAILURE"] * 5 + ["SUCCESS"] * 20
    assert {t.exception for t in of_f if t.state == "FAILURE"} == {
        f"ValueError: number {n}" for n in range(5)
    }
    newest = {t.result for t in of_f if t.state == "SUCCESS"}
    assert newest == {str(n) for n in range(280, 300)}
    assert all(f"W[{t.result}].s" in t.args for t in of_f if t.state == "SUCCESS")


def test_each_worker_has_its_own_places(app: Celery) -> None:
    one, other = (StepEvents(app, host, 2) for host in ("a@host", "b@host"))
    assert {one._id("f", "Succeeded") for _ in range(9)}.isdisjoint(
        other._id("f", "Succeeded") for _ in range(9)
    )

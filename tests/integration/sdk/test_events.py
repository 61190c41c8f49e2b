"""EventManager, EventDispatcher, LocalEventHandler and StepContinue of the specification."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flowengine.afl import compile_text
from flowengine.engine import Engine, Run
from flowengine.errors import EventRefused, HandlerRefused, UnknownStep, ValueRefused
from flowengine.sdk import (
    EVENT_TRANSITIONS,
    STEP_CONTINUE,
    EventDefinition,
    EventDispatcher,
    EventManager,
    EventState,
    LocalEventHandler,
)
from tests.integration.engines import opened

TEXT = """
namespace example.four {
  event facet CountDocuments(input: Long) => (output: Long)

  workflow Count(input: Long) => (output: Long) andThen {
    first = CountDocuments(input = $.input)
    second = CountDocuments(input = first.output)
    yield Count(output = second.output)
  }
}
"""
TYPE = "example.four.CountDocuments"


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    with opened(database_url) as engine:
        yield engine


@pytest.fixture
def run(engine: Engine) -> Run[Any]:
    return engine.start(compile_text(TEXT), "example.four.Count", {"input": 1})


def only(engine: Engine, run: Run[Any]) -> EventDefinition:
    """The event of the run that has not ended."""
    (event,) = [e for e in engine.events(run.id) if not EventState.is_terminal(e.state)]
    return event


# --- snippets of the specification ---


def test_the_states_and_transitions_are_those_of_the_specification() -> None:
    assert EventState.CREATED == "event.Created"
    assert EventState.DISPATCHED == "event.Dispatched"
    assert EventState.PROCESSING == "event.Processing"
    assert EventState.COMPLETED == "event.Completed"
    assert EventState.ERROR == "event.Error"
    assert EventState.is_terminal(EventState.ERROR)
    assert not EventState.is_terminal(EventState.PROCESSING)
    assert EVENT_TRANSITIONS == {
        EventState.CREATED: EventState.DISPATCHED,
        EventState.DISPATCHED: EventState.PROCESSING,
        EventState.PROCESSING: EventState.COMPLETED,
    }
    event = EventDefinition("e", "s", "w", EventState.CREATED, TYPE)
    assert event.payload == {}


def test_a_manager_leads_an_event_through_its_lifecycle(engine: Engine, run: Run[Any]) -> None:
    manager = EventManager(engine)
    blocked = only(engine, run)
    event = manager.create_event(
        step_id=blocked.step_id, workflow_id=run.id, event_type=TYPE, payload={"input": 1}
    )
    assert event == blocked
    event = manager.dispatch(event)
    assert event.state == EventState.DISPATCHED
    event = manager.complete(event, {"output": 2})
    assert event.state == EventState.COMPLETED
    assert event.payload["result"] == {"output": 2}
    event = manager.error(only(engine, run), "no documents")
    assert event.state == EventState.ERROR
    assert event.payload["error"] == "no documents"
    assert run.state == "FAILED"


def test_a_local_handler_handles_events_by_their_type(engine: Engine, run: Run[Any]) -> None:
    handler = LocalEventHandler()
    event = only(engine, run)
    assert handler.handle(event) is None
    handler.register(TYPE, lambda payload: {"output": payload["input"] + 1})
    assert handler.handle(event) == {"output": 2}


def test_a_local_handler_drives_a_run_to_its_end(engine: Engine, run: Run[Any]) -> None:
    handler = LocalEventHandler()
    handler.register("CountDocuments", lambda payload: {"output": payload["input"] + 1})
    assert handler.process(run) == 2
    assert run.outputs(timeout=0) == {"output": 3}
    changes = [change.state for change in engine.events(run.id, after=0)]
    assert changes == 2 * [
        EventState.CREATED,
        EventState.DISPATCHED,
        EventState.PROCESSING,
        EventState.COMPLETED,
    ]
    assert handler.process(run) == 0


def test_the_error_of_a_local_handler_fails_the_step(engine: Engine, run: Run[Any]) -> None:
    handler = LocalEventHandler()
    handler.register(TYPE, lambda payload: 1 // 0)  # type: ignore[arg-type, return-value]
    assert handler.process(run) == 1
    assert run.info().error["type"] == "ZeroDivisionError"  # type: ignore[index]


def test_a_handler_that_is_no_function_is_refused() -> None:
    with pytest.raises(HandlerRefused, match="not a int"):
        LocalEventHandler().register(TYPE, 3)  # type: ignore[arg-type]


def test_an_event_is_blocked_until_a_step_continue(engine: Engine, run: Run[Any]) -> None:
    """Sections 6 to 8: the run pauses at each event, and goes on with each StepContinue."""
    manager = EventManager(engine)
    for output in (2, 3):
        blocked = only(engine, run)
        assert run.state == "RUNNING"
        event = EventDefinition(
            id="any",
            step_id=blocked.step_id,
            workflow_id=run.id,
            event_type="StepContinue",
            payload={"step_id": blocked.step_id, "result": {"output": output}},
            state=EventState.CREATED,
        )
        assert manager.dispatch(event).state == EventState.COMPLETED
    assert run.outputs(timeout=0) == {"output": 3}


def test_duplicate_and_late_step_continues_change_nothing(engine: Engine, run: Run[Any]) -> None:
    manager = EventManager(engine)
    step_id = only(engine, run).step_id
    continues = [
        manager.create_event(step_id, run.id, STEP_CONTINUE, {"result": {"output": output}})
        for output in (2, 5, 6)
    ]
    for event in continues:
        manager.dispatch(event)
    (first, second) = engine.events(run.id)
    assert second.payload == {"input": 2}
    revision = run.info().revision
    manager.dispatch(continues[0])
    assert run.info().revision == revision
    LocalEventHandler().process(run)
    manager.dispatch(manager.create_event(second.step_id, run.id, STEP_CONTINUE))
    assert only(engine, run) == second  # without a result a blocked step stays
    assert first.state == EventState.COMPLETED


# --- refusals ---


def test_an_event_that_has_ended_takes_no_other_end(engine: Engine, run: Run[Any]) -> None:
    manager = EventManager(engine)
    event = only(engine, run)
    manager.complete(event, {"output": 2})
    assert manager.complete(event, {"output": 9}).state == EventState.COMPLETED
    with pytest.raises(EventRefused, match=r"has ended as event\.Completed"):
        manager.error(event, "too late")
    with pytest.raises(EventRefused, match=r"has ended as event\.Completed"):
        manager.dispatch(event)


def test_a_manager_refuses_events_that_no_step_has(engine: Engine, run: Run[Any]) -> None:
    manager = EventManager(engine)
    event = only(engine, run)
    with pytest.raises(EventRefused, match=r"of the type example\.four\.CountDocuments, not Other"):
        manager.create_event(event.step_id, run.id, "Other", {})
    with pytest.raises(EventRefused, match="arguments of its step"):
        manager.create_event(event.step_id, run.id, TYPE, {"input": 7})
    with pytest.raises(EventRefused, match="no event of this step"):
        manager.create_event("unknown", run.id, TYPE, {})
    with pytest.raises(EventRefused, match="no StepContinue"):
        manager.step_continue(event)
    with pytest.raises(UnknownStep):
        manager.dispatch(manager.create_event("unknown", run.id, STEP_CONTINUE))
    with pytest.raises(ValueRefused):
        manager.complete(event, {"output": "many"})
    assert manager.get(event).state == EventState.DISPATCHED


# --- systems outside ---


class Outside(EventDispatcher):
    def __init__(self) -> None:
        super().__init__()
        self.received: list[EventDefinition] = []
        self.done: list[tuple[str, dict[str, Any]]] = []

    def dispatch(self, event: EventDefinition) -> None:
        self.received.append(event)

    def poll_completed(self) -> list[tuple[str, dict[str, Any]]]:
        done, self.done = self.done, []
        return done


def test_a_dispatcher_sends_each_event_once_and_brings_the_results(
    engine: Engine, run: Run[Any]
) -> None:
    manager, outside = EventManager(engine), Outside()
    for n in (1, 2):
        assert outside.pump(manager, run.id) == 0
        assert outside.pump(manager, run.id) == 0
        assert len(outside.received) == n
        event = outside.received[-1]
        outside.done = [(event.id, {"output": event.payload["input"] + 1})]
        restarted = Outside()  # a new process, which does not know what was sent
        restarted.done = outside.poll_completed()
        assert restarted.pump(manager, run.id) == 1
    assert run.outputs(timeout=0) == {"output": 3}
    outside.done = [("unknown", {})]
    with pytest.raises(EventRefused, match="no such event"):
        outside.pump(manager, run.id)


def test_a_dispatcher_without_a_system_does_nothing(engine: Engine, run: Run[Any]) -> None:
    assert EventDispatcher().pump(EventManager(engine), run.id) == 0


# --- caught failures ---

CAUGHT = """
namespace caught {
  event facet Work(n: Long) => (n: Long)

  workflow Tries(n: Long) => (n: Long) andThen {
    work = Work(n = $.n) catch {
      yield Work(n = 7)
    }
    yield Tries(n = work.n)
  }
}
"""


@pytest.mark.parametrize("end", ["outside", "handler", "completed"])
def test_an_event_whose_failure_is_caught_has_ended_as_an_error(engine: Engine, end: str) -> None:
    run = engine.start(compile_text(CAUGHT), "caught.Tries", {"n": 1})
    (event,) = engine.events(run.id)
    if end == "handler":
        handler = LocalEventHandler()
        handler.register("Work", lambda payload: {"n": 1 // 0})
        handler.process(run)
    elif end == "outside":
        engine.fail_step(event.step_id, "no")
    else:
        engine.continue_step(event.step_id, 3)
    assert run.outputs(timeout=0) == {"n": 3 if end == "completed" else 7}
    expected = EventState.COMPLETED if end == "completed" else EventState.ERROR
    (event,) = engine.events(run.id)
    assert event.state == expected
    assert [change.state for change in engine.events(run.id, after=0)][-1] == expected

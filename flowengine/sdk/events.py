"""The events of runs: their lifecycle, handlers for tests, and the way to systems outside.

The engine creates an event with the step that needs it, and its state follows from the rows of the
step and its tries. So a manager cannot write a state that is not true: to complete an event is to
give its step a result, and to fail it is to fail the step.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from flowengine.engine import Engine, Run
from flowengine.errors import EventRefused, HandlerRefused, UnknownStep
from flowengine.evaluator import EventDefinition
from flowengine.evaluator.records import id_within
from flowengine.evaluator.states import EventState, TaskState
from flowengine.evaluator.triggers import Failed, Succeeded
from flowengine.program.nodes import Json
from flowengine.store.claims import WorkerIdentity

#: The system event that resumes a step which waits at its event.
STEP_CONTINUE = "StepContinue"
_MAX_ROUNDS = 10_000  #: of LocalEventHandler.process


class EventManager:
    """The lifecycle of events, over the rows of an engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def create_event(
        self,
        step_id: str,
        workflow_id: str,
        event_type: str,
        payload: Mapping[str, Any] | None = None,
    ) -> EventDefinition:
        """Return the event of a step; the engine has created it when the step got there.

        Raises EventRefused if the step does not have this event. The type StepContinue makes a new
        system event, which `dispatch` processes.
        """
        if event_type == STEP_CONTINUE:
            given = {"step_id": step_id, **(payload or {})}
            return EventDefinition(
                uuid.uuid4().hex, step_id, workflow_id, EventState.CREATED, STEP_CONTINUE, given
            )
        found = self._of_step(workflow_id, step_id)
        if found.event_type != event_type:
            reason = f"it is of the type {found.event_type}, not {event_type}"
            raise EventRefused(found.id, reason)
        if payload and dict(payload) != found.payload:
            raise EventRefused(found.id, "its payload are the arguments of its step, not others")
        return found

    def get(self, event: EventDefinition) -> EventDefinition:
        """Return an event as it is now."""
        return self._of_step(event.workflow_id, event.step_id)

    def dispatch(self, event: EventDefinition) -> EventDefinition:
        """Return an event that handlers can claim, or have claimed; process a StepContinue.

        An event is dispatched by the engine as soon as its limits allow. Raises EventRefused if it
        is not dispatched yet, or has ended.
        """
        if event.event_type == STEP_CONTINUE:
            return self.step_continue(event)
        found = self.get(event)
        if EventState.is_terminal(found.state):
            raise EventRefused(found.id, f"it has ended as {found.state}")
        if found.state == EventState.CREATED:
            raise EventRefused(found.id, "it waits for a limit or rate, and is dispatched then")
        return found

    def complete(self, event: EventDefinition, result: Mapping[str, Json]) -> EventDefinition:
        """Give the step of an event its result; idempotent.

        Raises EventRefused if the event has ended otherwise, and ValueRefused for a result that the
        facet does not declare.
        """
        self.engine.continue_step(event.step_id, dict(result))
        found = self._ended(event, EventState.COMPLETED)
        return replace(found, payload={**found.payload, "result": dict(result)})

    def error(self, event: EventDefinition, error: str) -> EventDefinition:
        """Fail the step of an event; idempotent. Raises EventRefused if it has completed."""
        self.engine.fail_step(event.step_id, error)
        found = self._ended(event, EventState.ERROR)
        return replace(found, payload={**found.payload, "error": error})

    def step_continue(self, event: EventDefinition) -> EventDefinition:
        """Process a StepContinue: resume its step if that waits at its event, else do nothing.

        The result of the step is in its payload as ``result``. Without one, a result that a handler
        has reported is evaluated.
        """
        if event.event_type != STEP_CONTINUE:
            raise EventRefused(event.id, f"it is of the type {event.event_type}, no StepContinue")
        step_id = event.payload.get("step_id", event.step_id)
        if "result" in event.payload:
            self.engine.continue_step(step_id, event.payload["result"])
        else:
            with self.engine.database.read() as session:
                step = session.steps.by_id(step_id)
            if step is None:
                raise UnknownStep(step_id)
            self.engine.resume(step.run_id)
        return replace(event, state=EventState.COMPLETED)

    def _of_step(self, run_id: str, step_id: str) -> EventDefinition:
        for event in self.engine.events(run_id):
            if event.step_id == step_id:
                return event
        raise EventRefused(step_id, f"run {run_id} has no event of this step")

    def _ended(self, event: EventDefinition, state: str) -> EventDefinition:
        found = self.get(event)
        if found.state != state:
            raise EventRefused(found.id, f"it has ended as {found.state} before")
        return found


class EventDispatcher:
    """The way of events to a system outside: derive from it, and call `pump` repeatedly.

    An event may be dispatched again after a restart of the process; its id stays the same.
    """

    def __init__(self) -> None:
        self._sent: dict[str, EventDefinition] = {}

    def dispatch(self, event: EventDefinition) -> None:
        """Send an event to the system outside."""

    def poll_completed(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the ids of events that it has completed since, with their results."""
        return []

    def pump(self, manager: EventManager, run_id: str) -> int:
        """Dispatch new events of a run, complete those that are done; return how many were."""
        for event in manager.engine.events(run_id):
            if event.state == EventState.DISPATCHED and event.id not in self._sent:
                self.dispatch(event)
                self._sent[event.id] = event
            elif EventState.is_terminal(event.state):
                self._sent.pop(event.id, None)
        done = 0
        for event_id, result in self.poll_completed():
            sent = event_id in self._sent
            event = self._sent.pop(event_id) if sent else _found(manager, run_id, event_id)
            manager.complete(event, result)
            done += 1
        return done


def _found(manager: EventManager, run_id: str, event_id: str) -> EventDefinition:
    for event in manager.engine.events(run_id):
        if event.id == event_id:
            return event
    raise EventRefused(event_id, f"run {run_id} has no such event")


class LocalEventHandler:
    """Handlers of events in the process of a test, by event type."""

    def __init__(self) -> None:
        self._handlers: dict[str, Callable[[dict[str, Any]], Mapping[str, Any] | None]] = {}

    def register(
        self, event_type: str, handler: Callable[[dict[str, Any]], Mapping[str, Any] | None]
    ) -> None:
        """Register the handler of an event type: the qualified or the short name of a facet."""
        if not callable(handler):
            kind = type(handler).__name__
            raise HandlerRefused(event_type, f"a handler is a function of one dict, not a {kind}")
        self._handlers[event_type] = handler

    def handle(self, event: EventDefinition) -> dict[str, Any] | None:
        """Call the handler of an event with its payload; None: it has no handler."""
        handler = self._find(event.event_type)
        if handler is None:
            return None
        returned = handler(dict(event.payload))
        return {} if returned is None else dict(returned)

    def _find(self, name: str) -> Callable[[dict[str, Any]], Mapping[str, Any] | None] | None:
        return self._handlers.get(name) or self._handlers.get(name.rpartition(".")[2])

    def process(self, run: Run[Any]) -> int:
        """Handle the events of a run until none is left that has a handler; return how many.

        Each is claimed, handled and reported as by a worker: an exception fails the try.
        """
        engine, handled = run.engine, 0
        boot_id = uuid.uuid4().hex
        identity = WorkerIdentity(boot_id, boot_id)
        for _ in range(_MAX_ROUNDS):
            pending = [
                task
                for task in engine.tasks(run.id)
                if task.state == TaskState.PENDING and self._find(task.name) is not None
            ]
            claimed = [
                found
                for task in pending
                if (found := engine.claim_one(task.uuid, task.task_list_name, identity))
            ]
            if not claimed:
                return handled
            for task in claimed:
                event = EventDefinition(
                    id_within(task.step_id, "event"),
                    task.step_id,
                    run.id,
                    EventState.PROCESSING,
                    task.name,
                    dict(task.data or {}),
                )
                try:
                    outcome: Succeeded | Failed = Succeeded(self.handle(event) or {})
                except Exception as problem:
                    outcome = Failed({"type": type(problem).__name__, "message": str(problem)})
                engine.report(task, outcome)
                handled += 1
        raise EventRefused(run.id, f"the run goes on after {_MAX_ROUNDS} rounds of events")

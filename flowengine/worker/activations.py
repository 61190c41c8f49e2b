"""Run the activations of durable functions.

An activation runs the code of a function until everything in it waits, and reports its new calls.
The code is run from the record of the function: calls that are recorded are not made again. Quick
calls are made by the activation itself (`in_place_calls`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from sqlalchemy.exc import DBAPIError

from flowengine.authoring import WorkflowCall, workflow_named
from flowengine.engine import Engine
from flowengine.errors import MissingCode, StoreError
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.records import ACTIVATION
from flowengine.evaluator.triggers import ActivationEnded, Failed, Lost, Outcome, Succeeded
from flowengine.program.function_calls import (
    CallEnd,
    CallKind,
    FunctionCall,
    FunctionEnd,
    Progress,
)
from flowengine.program.standard import RESULT
from flowengine.store.calls import StoredFunction
from flowengine.worker.execution import ChildNotStarted, OpenLog, start_child
from flowengine.worker.handlers import FindHandler
from flowengine.worker.in_place_calls import InPlaceCalls, InPlacePolicy

if TYPE_CHECKING:
    from flowengine.authoring.functions import Activation, DurableFunction

Beat: TypeAlias = Callable[[str | None], bool]

MAX_NEW_CALLS = 500  #: of one report: a commit stays small however wide a gather is


class _FunctionHandler(Protocol):
    """The handler of an activation's task: `authoring.function_facets.FunctionFacet` is one."""

    @property
    def durable(self) -> DurableFunction: ...


@dataclass(slots=True)
class LoadedFunction:
    """A function that is about to be run: its code, and its record."""

    task: TaskDefinition
    handler: _FunctionHandler
    stored: StoredFunction


class Activations:
    """Runs activations for one process. Shared by all threads of its pool."""

    def __init__(
        self, engine: Engine, find: FindHandler, policy: InPlacePolicy | None = None
    ) -> None:
        """Without a policy only plain functions are called in place."""
        self._engine, self._find, self._policy = engine, find, policy

    def execute(self, task: TaskDefinition, beat: Beat, open_log: OpenLog | None = None) -> Outcome:
        """Run an activation, or start the run that a function awaits."""
        if task.data_type != ACTIVATION:
            return self.start_run(task)
        loaded = self.load(task)
        return loaded if isinstance(loaded, Failed) else self.run(loaded, beat, open_log)

    def load(self, task: TaskDefinition) -> LoadedFunction | Failed:
        """Read the record of a function; raises errors of the database."""
        handler: Any = self._find(task.name)
        if not hasattr(handler, "durable"):
            return _failure(MissingCode(task.name))
        with self._engine.database.autocommit() as session:
            stored = session.calls.record(task.workflow_id, task.step_key, task.step_path)
        if stored is None or stored.step.id != task.step_id:
            return _failure(RuntimeError(f"{task.step_path} was retried"))  # refused: it is fenced
        return LoadedFunction(task, handler, stored)

    def run(self, loaded: LoadedFunction, beat: Beat, open_log: OpenLog | None = None) -> Outcome:
        """Run a function until everything waits; return its report. Raises LeaseLost."""
        from flowengine.authoring.functions import Activation  # asyncio, which others do not need

        task, stored = loaded.task, loaded.stored
        calls = InPlaceCalls(self._engine, task, stored.step, beat, open_log, self._policy)
        activation = Activation(
            loaded.handler.durable,
            task.data or {},
            step_id=f"{task.workflow_id}:{task.step_key}",
            started=stored.step.created,
            record=stored.record,
        )
        with activation:
            try:
                return _advanced(activation, calls, stored.seen)
            except (DBAPIError, StoreError) as problem:
                # No call of it was lost: the next activation goes on behind those recorded.
                return Lost(f"the calls of {task.step_path} cannot be recorded: {problem}")

    def start_run(self, task: TaskDefinition) -> Outcome:
        """Start the run that a function awaits; raises ChildNotStarted."""
        with self._engine.database.read() as session:
            call = session.steps.by_id(task.step_id)
        name = "" if call is None else call.facet_name
        flow = workflow_named(name)
        if flow is None:
            return _failure(MissingCode(name))
        called = WorkflowCall(flow.program(), flow.name, dict(task.data or {}))
        try:
            return start_child(self._engine, task, called)
        except Exception as problem:
            raise ChildNotStarted(task.step_path, called, problem) from problem


def _advanced(activation: Activation, calls: InPlaceCalls, seen: int) -> ActivationEnded:
    """Run a function, with its calls in place, until it waits for others; return its report."""
    progress = activation.advance()
    unmade: list[FunctionCall] = []  #: new calls that are not recorded, in order, without gaps
    cancelled: list[int] = []
    failed: Failed | None = None
    while True:
        unmade += progress.calls
        cancelled += progress.cancelled
        # The first call that is not made here takes those behind it along.
        number = 0 if failed or progress.ended else calls.leading(unmade, cancelled)
        ends: list[CallEnd] = []
        for call in unmade[:number]:
            end = calls.make(call, activation.code_of(call.number))
            if not isinstance(end, CallEnd):
                failed = end
                number = 0
                break
            ends.append(end)
        if calls.is_due():
            calls.record()
        del unmade[: len(ends)]
        if not ends:
            break
        progress = activation.advance(ends)
    calls.record()
    heard = tuple(activation.numbers.heard)
    return report_of(Progress(tuple(unmade), heard, tuple(cancelled), progress.ended), seen, failed)


def report_of(progress: Progress, seen: int, failed: Failed | None = None) -> ActivationEnded:
    """Return the report of an activation that was told of so many ends.

    Plain functions have no task: the next activation calls those that are behind other calls.
    """
    most = MAX_NEW_CALLS
    for at, call in enumerate(progress.calls[0 if failed is None else 1 :]):
        if call.kind is CallKind.STEP and call.number not in progress.cancelled:
            most = min(most, at if failed is None else at + 1)
            break
    calls, others = progress.calls[:most], progress.calls[most:]
    left = {call.number for call in others}
    return ActivationEnded(
        calls=calls,
        heard=() if left else progress.heard,
        cancelled=tuple(number for number in progress.cancelled if number not in left),
        ended=None if left or progress.ended is None else end_of(progress.ended),
        seen=seen,
        failed=failed,
        is_partial=bool(left),
    )


def end_of(ended: FunctionEnd) -> Succeeded | Failed:
    """Return the end of a function as the end of a try that is not repeated."""
    if ended.error is not None:
        return Failed(ended.error, retry=False)
    return Succeeded({RESULT: ended.result}, is_from_code=True)


def _failure(problem: Exception) -> Failed:
    bases: Sequence[str] = [base.__name__ for base in type(problem).__mro__[1:-2]]
    error = {"type": type(problem).__name__, "message": str(problem), "bases": list(bases)}
    return Failed(error, retry=False)

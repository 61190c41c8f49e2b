"""Run the activations of durable functions.

An activation runs the code of a function until everything in it waits, and reports its new calls.
The code is run from the record of the function: calls that are recorded are not made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from flowengine.authoring import WorkflowCall, workflow_named
from flowengine.engine import Engine
from flowengine.errors import MissingCode
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.records import ACTIVATION
from flowengine.evaluator.triggers import ActivationEnded, Failed, Outcome, Succeeded
from flowengine.program.function_calls import FunctionEnd, Progress
from flowengine.program.standard import RESULT
from flowengine.store.calls import StoredFunction
from flowengine.worker.execution import ChildNotStarted, start_child
from flowengine.worker.handlers import FindHandler

if TYPE_CHECKING:
    from flowengine.authoring.functions import DurableFunction

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

    def __init__(self, engine: Engine, find: FindHandler) -> None:
        self._engine, self._find = engine, find

    def execute(self, task: TaskDefinition) -> Outcome:
        """Run an activation, or start the run that a function awaits."""
        if task.data_type != ACTIVATION:
            return self.start_run(task)
        loaded = self.load(task)
        return loaded if isinstance(loaded, Failed) else self.run(loaded)

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

    def run(self, loaded: LoadedFunction) -> Outcome:
        """Run a function until everything waits; return its report."""
        from flowengine.authoring.functions import Activation  # asyncio, which others do not need

        task, stored = loaded.task, loaded.stored
        activation = Activation(
            loaded.handler.durable,
            task.data or {},
            step_id=f"{task.workflow_id}:{task.step_key}",
            started=stored.step.created,
            record=stored.record,
        )
        with activation:
            progress = activation.advance()
        return report_of(progress, stored.seen)

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


def report_of(progress: Progress, seen: int) -> ActivationEnded:
    """Return the report of an activation that was told of so many ends."""
    calls = progress.calls[:MAX_NEW_CALLS]
    left = {call.number for call in progress.calls[MAX_NEW_CALLS:]}
    return ActivationEnded(
        calls=calls,
        heard=() if left else progress.heard,
        cancelled=tuple(number for number in progress.cancelled if number not in left),
        ended=None if left or progress.ended is None else end_of(progress.ended),
        seen=seen,
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

"""Run one try of a step: call the facet, and make a fact of whatever comes of it."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from flowengine.authoring import WorkflowCall, event_facet_named
from flowengine.engine import Engine
from flowengine.errors import (
    DoesNotFit,
    InvalidInputs,
    InvalidProgram,
    MissingCode,
    UnknownWorkflow,
    ValueRefused,
)
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import Failed, HandedOver, Lost, Outcome, Succeeded
from flowengine.store.outages import is_away
from flowengine.worker.circuits import Passage
from flowengine.worker.context import running

log = logging.getLogger("flowengine")

#: Errors that another try would meet again.
_HOPELESS = (
    ValueRefused,
    DoesNotFit,
    MissingCode,
    InvalidInputs,
    InvalidProgram,
    UnknownWorkflow,
)


def execute_try(
    engine: Engine,
    task: TaskDefinition,
    beat: Callable[[], bool],
    passage: Passage | None = None,
) -> Outcome:
    """Run the facet of a task. An error is an outcome like any other, and not raised.

    What is no error, as `SystemExit`, is: somebody wants this thread to end. The circuit that
    gave the passage is told how the call of the facet ended.
    """
    facet = event_facet_named(task.name)
    try:
        if facet is None:
            raise MissingCode(task.name)
        with running(task, beat), _told(passage):
            result = facet.run(task.data or {})
        if isinstance(result, WorkflowCall):
            return _go_on(engine, task, result)
        return Succeeded(result)
    except Exception as problem:
        error = _error(problem)
        log.info(
            "%s failed: %s: %s",
            task.step_path,
            error["type"],
            error["message"],
            extra={"action": "try_failed", "run": task.workflow_id, "facet": task.name},
        )
        is_final = isinstance(problem, _HOPELESS) or (facet and facet.is_final(problem))
        return Failed(error, retry=not is_final)


@contextmanager
def _told(passage: Passage | None) -> Iterator[None]:
    """Tell a circuit how the call ended that it let through, once."""
    if passage is None:
        yield
        return
    try:
        yield
    except _HOPELESS:
        passage.release()  # the service had no part in it
        raise
    except Exception as problem:
        passage.failed(problem)
        raise
    except BaseException:
        passage.release()  # we are told to go: nothing is known of the call
        raise
    passage.succeeded()


def _go_on(engine: Engine, task: TaskDefinition, call: WorkflowCall) -> Outcome:
    """Start the run that a facet wants to go on with."""
    try:
        run_id = engine.start_child(
            task, call.program, call.workflow, call.inputs, waits=call.waits
        )
    except Exception as problem:
        if not is_away(problem):
            raise
        # Not the facet's fault: it is tried again as after the death of a worker.
        return Lost(f"the run to go on with could not be started: {problem}")
    return HandedOver(run_id) if call.waits else Succeeded({"result": run_id, "run": run_id})


def _error(problem: BaseException) -> dict[str, Any]:
    kept = traceback.format_exception(type(problem), problem, _theirs(problem.__traceback__))
    try:
        message = str(problem)
    except Exception as worse:
        message = f"(its text could not be made: {type(worse).__name__})"
    return {
        "type": type(problem).__name__,
        "message": message or type(problem).__name__,
        "traceback": "".join(kept)[-8000:],
    }


def _theirs(trace: TracebackType | None) -> TracebackType | None:
    """The trace from where it leaves this package: the frames before it help nobody."""
    found = trace
    while found is not None:
        if not found.tb_frame.f_globals.get("__name__", "").startswith("flowengine."):
            return found
        found = found.tb_next
    return trace

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
from flowengine.worker.breakers import TaskPermit
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
    permit: TaskPermit | None = None,
) -> Outcome:
    """Run the facet of a task. An error is an outcome like any other, and not raised.

    What is no error, as `SystemExit`, is: somebody wants this thread to end. The circuit
    breaker that gave the permit receives the outcome of the facet's call.
    """
    facet = event_facet_named(task.name)
    try:
        if facet is None:
            raise MissingCode(task.name)
        with running(task, beat), _reported(permit):
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
def _reported(permit: TaskPermit | None) -> Iterator[None]:
    """Report the outcome of a permitted call to its circuit breaker, once."""
    if permit is None:
        yield
        return
    try:
        yield
    except _HOPELESS:
        permit.release()  # the service was not involved
        raise
    except Exception as problem:
        permit.failed(problem)
        raise
    except BaseException:
        permit.release()  # the thread is stopped: the outcome is unknown
        raise
    permit.succeeded()


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


_ROOTS = (BaseException, object)  #: bases of every error: no handler is for them


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
        "bases": [base.__name__ for base in type(problem).__mro__[1:] if base not in _ROOTS],
    }


def _theirs(trace: TracebackType | None) -> TracebackType | None:
    """The trace from where it leaves this package: the frames before it help nobody."""
    found = trace
    while found is not None:
        if not found.tb_frame.f_globals.get("__name__", "").startswith("flowengine."):
            return found
        found = found.tb_next
    return trace

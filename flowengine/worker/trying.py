"""Run one try of a step: call the facet, and make a fact of whatever comes of it."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from flowengine.authoring import event_facet_named
from flowengine.errors import DoesNotFit, MissingCode, ValueRefused
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.happenings import Failed, Succeeded, TryOutcome
from flowengine.worker.context import running

log = logging.getLogger("flowengine")

#: Errors that another try would meet again.
_HOPELESS = (ValueRefused, DoesNotFit, MissingCode)


def run_try(task: TaskDefinition, beat: Callable[[], bool]) -> TryOutcome:
    """Run the facet of a task. Never raises: an error is an outcome like any other."""
    facet = event_facet_named(task.name)
    try:
        if facet is None:
            raise MissingCode(task.name)
        with running(task, beat):
            return Succeeded(facet.run(task.data or {}))
    except Exception as problem:
        log.info(
            "%s failed: %s: %s",
            task.step_path,
            type(problem).__name__,
            problem,
            extra={"action": "try_failed", "run": task.workflow_id, "facet": task.name},
        )
        is_final = isinstance(problem, _HOPELESS) or (facet and facet.is_final(problem))
        return Failed(_error(problem), retry=not is_final)


def _error(problem: BaseException) -> dict[str, Any]:
    kept = traceback.format_exception(type(problem), problem, _theirs(problem.__traceback__))
    return {
        "type": type(problem).__name__,
        "message": str(problem) or type(problem).__name__,
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

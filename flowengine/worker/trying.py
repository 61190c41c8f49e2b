"""Run one try of a step: call the facet, and make a fact of whatever comes of it."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
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
    try:
        facet = event_facet_named(task.name)
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
        return Failed(_error(problem), retry=not isinstance(problem, _HOPELESS))


def _error(problem: BaseException) -> dict[str, Any]:
    kept = traceback.format_exception(problem)
    return {
        "type": type(problem).__name__,
        "message": str(problem) or type(problem).__name__,
        "traceback": "".join(kept)[-8000:],
    }

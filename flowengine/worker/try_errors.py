"""The error of a try, as it is stored and logged."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from flowengine.engine import Engine
from flowengine.engine.failure_log import FailureLog, level_of
from flowengine.errors import FlowengineError, ModelOverloaded, ModelRateLimited, RetryAfter
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.events import RETRY_AFTER
from flowengine.evaluator.triggers import Failed
from flowengine.log_filter import REMOTE_TRACEBACK
from flowengine.program.limits import clipped

log = logging.getLogger("flowengine")
#: `GreenletExit` is greenlet's, which need not be installed.
_ENDING = frozenset(("SystemExit", "KeyboardInterrupt", "GeneratorExit", "GreenletExit"))


def ends_thread(problem: BaseException) -> bool:
    """Whether an exception asks its thread or process to end.

    Other exceptions beside `Exception` are errors of the facet: `asyncio.CancelledError`, which a
    coroutine raises if something it awaits was cancelled, and those of libraries like trio.
    """
    if isinstance(problem, BaseExceptionGroup):
        return any(ends_thread(inner) for inner in problem.exceptions)
    names = {kind.__name__ for kind in type(problem).__mro__}
    return not isinstance(problem, Exception) and bool(names & _ENDING)


def failed(engine: Engine, task: TaskDefinition, problem: BaseException, *, retry: bool) -> Failed:
    """Return the failure of a try, and log it; with `retry`, its policy decides what follows."""
    demanded = _demanded(problem)
    if isinstance(problem, RetryAfter):
        problem = problem.recorded
    frames = _frames(problem)
    error = _error(problem, frames, engine.settings.max_error_length)
    if demanded is not None:
        error[RETRY_AFTER] = demanded
    _log(FailureLog(engine.settings), task, problem, frames, error)
    return Failed(error, retry=retry)


def _log(
    failures: FailureLog,
    task: TaskDefinition,
    problem: BaseException,
    frames: TracebackType | None,
    error: dict[str, Any],
) -> None:
    """Log the failure of a try with its exception; without values, which some messages have."""
    level = level_of(task.name, problem)
    if not log.isEnabledFor(level):
        return
    about: dict[str, Any] = {"action": "try_failed", "run": task.workflow_id}
    about |= {"path": task.step_path, "facet": task.name, "try_number": task.try_number}
    text, raised = failures.described(error), None
    if failures.is_sealed or any(map(_has_values, _chain(problem))):
        about[REMOTE_TRACEBACK] = failures.places(error)
    else:
        raised = (type(problem), problem, frames)
    parts = (task.step_path, text, task.try_number, task.workflow_id)
    log.log(level, "%s failed: %s (try %d of run %s)", *parts, exc_info=raised, extra=about)


def _has_values(problem: BaseException) -> bool:
    """Whether the message of an exception has values that its text for logs leaves out."""
    return isinstance(problem, FlowengineError) and problem.without_values() != str(problem)


def _chain(problem: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those that its traceback shows with it."""
    seen: set[int] = set()
    waiting = [problem]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions


_MAX_CAUSES = 10  #: types of other errors behind an error
_ROOTS = (BaseException, object)  #: bases of every error: no handler is for them


def _frames(problem: BaseException) -> TracebackType | None:
    frames = _user_frames(problem.__traceback__)
    if frames is None and not isinstance(problem, FlowengineError):
        return problem.__traceback__  # a defect of this package, and not raised on purpose
    return frames


def _error(problem: BaseException, frames: TracebackType | None, most: int) -> dict[str, Any]:
    kept = traceback.format_exception(type(problem), problem, frames)
    try:
        message = str(problem)
    except Exception as worse:
        message = f"(its text could not be made: {type(worse).__name__})"
    error: dict[str, Any] = {
        "type": type(problem).__name__,
        "message": clipped(message or type(problem).__name__, most),
        "traceback": "".join(kept)[-most:],
        "bases": [base.__name__ for base in type(problem).__mro__[1:] if base not in _ROOTS],
    }
    if causes := _causes(problem):
        error["causes"] = causes
    return error


def _causes(problem: BaseException) -> list[str]:
    """Return the types of the errors that an error was raised from, or while handling, or holds."""
    found: list[str] = []
    seen, later = {id(problem)}, [problem]
    while later and len(found) < _MAX_CAUSES:
        one = later.pop(0)
        context = None if one.__suppress_context__ else one.__context__
        parts = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        for cause in (one.__cause__ or context, *parts):
            if cause is not None and id(cause) not in seen:
                seen.add(id(cause))
                found.append(type(cause).__name__)
                later.append(cause)
    return list(dict.fromkeys(found))[:_MAX_CAUSES]


def _demanded(problem: BaseException) -> float | None:
    """Return the seconds before the next try that the code demands, or the provider of a model."""
    if isinstance(problem, RetryAfter):
        return problem.seconds
    if isinstance(problem, ModelRateLimited | ModelOverloaded):
        return problem.retry_after
    return None


def _user_frames(trace: TracebackType | None) -> TracebackType | None:
    """Cut the frames of this package off the beginning of a traceback; None: it has no others."""
    while trace is not None:
        if not trace.tb_frame.f_globals.get("__name__", "").startswith("flowengine."):
            return trace
        trace = trace.tb_next
    return None

"""An existing Celery task as an event facet, unchanged.

    charge = event_facet(charge_task)

This floor does not know Celery: a task is recognised by what it has. What the task says
about itself is kept: its name, its queue as task list, its time limit as timeout, and
`autoretry_for` with `max_retries` and `default_retry_delay` as retry policy. `self.retry()`
called in such a body raises the error it was given, which ends the try: the engine tries
again, not Celery.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from flowengine.program.nodes import RetryPolicy


def is_celery_task(found: Any) -> bool:
    """Whether this is a Celery task, or a stand-in for one that is made when first used."""
    return all(hasattr(found, name) for name in ("run", "name", "apply_async", "max_retries"))


def borrowed(task: Any, given: Mapping[str, Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the function to run and the options: the task's own, under those given."""
    retries = tuple(getattr(task, "autoretry_for", None) or ())
    options: dict[str, Any] = {"name": task.name}
    if getattr(task, "queue", None):
        options["task_list"] = task.queue
    limit = getattr(task, "soft_time_limit", None) or getattr(task, "time_limit", None)
    if limit:
        options["timeout"] = limit
    if retries:
        said = {"max_retries": task.max_retries, **(getattr(task, "retry_kwargs", None) or {})}
        most, backoff = said["max_retries"], getattr(task, "retry_backoff", False)
        wait = said.get("countdown", backoff or task.default_retry_delay)
        options["retry"] = RetryPolicy(
            attempts=1 + (3 if most is None else most),
            first_wait=float(wait),
            factor=2.0 if backoff else 1.0,
            max_wait=float(getattr(task, "retry_backoff_max", 600)),
        )
    options.update(given)
    # Celery wraps `run` for autoretry; the wrapper keeps the author's signature.
    wraps = getattr(task.run, "__func__", task.run)

    @functools.wraps(wraps)
    def run(*args: Any, **kwargs: Any) -> Any:
        return task.run(*args, **kwargs)

    # Without `self`, for a bound task.
    run.__signature__ = inspect.signature(task.run)  # type: ignore[attr-defined]
    return run, options


def final_errors(task: Any) -> Callable[[BaseException], bool]:
    """Return which errors another try would not mend: those Celery would not retry either."""
    retries = tuple(getattr(task, "autoretry_for", None) or ())
    spared = tuple(getattr(task, "dont_autoretry_for", None) or ())

    def is_final(problem: BaseException) -> bool:
        if not retries:
            return False
        return isinstance(problem, spared) or not isinstance(problem, retries)

    return is_final

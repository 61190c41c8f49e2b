"""Existing Celery tasks as event facets: ``charge = event_facet(charge_task)``.

This layer does not import Celery: it recognises a task by its attributes. The facet keeps the
task's name, its queue or route as task list, its time limit as timeout, and `autoretry_for` with
`max_retries` and `default_retry_delay` as retry policy. `self.retry()` in the body raises the
error it was given and so ends the try: the engine retries, not Celery.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from flowengine.authoring.errbacks import errback_function, is_errback
from flowengine.authoring.task_lists import TaskListSource
from flowengine.program.event_options import RetryPolicy


def is_celery_task(value: Any) -> bool:
    """Whether the value is a Celery task, or the lazy proxy of one."""
    return all(hasattr(value, name) for name in ("run", "name", "apply_async", "max_retries"))


def adapted_task(task: Any, given: Mapping[str, Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the function and the options of a facet; `given` overrides the task's own."""
    retries = tuple(getattr(task, "autoretry_for", None) or ())
    options: dict[str, Any] = {"name": task.name}
    if getattr(task, "queue", None):
        options["task_list"] = task.queue
    limit = getattr(task, "soft_time_limit", None) or getattr(task, "time_limit", None)
    if limit:
        options["timeout"] = limit
    if retries:
        kwargs = {"max_retries": task.max_retries, **(getattr(task, "retry_kwargs", None) or {})}
        limit, backoff = kwargs["max_retries"], getattr(task, "retry_backoff", False)
        wait = kwargs.get("countdown", backoff or task.default_retry_delay)
        options["retry"] = RetryPolicy(
            attempts=1 + (3 if limit is None else limit),
            first_wait=float(wait),
            factor=2.0 if backoff else 1.0,
            max_wait=float(getattr(task, "retry_backoff_max", 600)),
        )
    options.update(given)
    if is_errback(task):
        return errback_function(task), options
    # Celery wraps `run` for autoretry; the wrapper preserves the signature.
    wraps = getattr(task.run, "__func__", task.run)

    @functools.wraps(wraps)
    def run(*args: Any, **kwargs: Any) -> Any:
        return task.run(*args, **kwargs)

    # The signature of a bound task has no `self`.
    run.__signature__ = inspect.signature(task.run)  # type: ignore[attr-defined]
    return run, options


def route_of(task: Any) -> TaskListSource:
    """Return a function that asks the task's app where its messages go."""

    def find(_name: str) -> str | None:
        route = task.app.amqp.router.route({}, task.name, task_type=task)
        queue = route.get("queue")
        return None if queue is None else str(getattr(queue, "name", queue))

    return find


def non_retryable(task: Any) -> Callable[[BaseException], bool]:
    """Return a predicate for the errors that Celery would not retry."""
    retries = tuple(getattr(task, "autoretry_for", None) or ())
    excluded = tuple(getattr(task, "dont_autoretry_for", None) or ())

    def is_final(problem: BaseException) -> bool:
        if not retries:
            return False
        return isinstance(problem, excluded) or not isinstance(problem, retries)

    return is_final

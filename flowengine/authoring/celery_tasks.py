"""Existing Celery tasks as event facets: ``charge = event_facet(charge_task)``.

This layer does not import Celery: it recognises a task by its attributes. It maps the options of a
task to those of a facet. A worker calls the task as Celery does, with its request, hooks and
signals (`flowengine.tasks.task_steps`); outside a run its function is called.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from flowengine.authoring.errbacks import errback_function, is_errback
from flowengine.authoring.task_findings import TaskFinding, task_findings
from flowengine.authoring.task_lists import TaskListSource
from flowengine.errors import AuthoringError, CeleryTaskWarning
from flowengine.program.event_options import Rate, RetryPolicy
from flowengine.program.option_checks import MAX_COUNT, MAX_RATE_COUNT

_PERIODS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True, eq=False)
class AdaptedTask:
    """A Celery task whose calls in runs are steps."""

    task: Any
    #: The facet was given a policy of its own, which decides on retries, and on the waits for which
    #: the task names no countdown.
    has_own_policy: bool
    given: frozenset[str] = frozenset()  #: the options that the facet was given

    def findings(self) -> list[TaskFinding]:
        """Return everything of the task that a step cannot carry over."""
        return task_findings(self.task, self.given)

    def is_final(self, problem: BaseException) -> bool:
        """Whether an error is not worth another try. A retry that the task asks for is no error."""
        retries = tuple(getattr(self.task, "autoretry_for", None) or ())
        if not retries:
            return not self.has_own_policy
        excluded = tuple(getattr(self.task, "dont_autoretry_for", None) or ())
        return isinstance(problem, excluded) or not isinstance(problem, retries)


#: Calls a task for the current step of a worker, as Celery would.
TaskRunner: TypeAlias = Callable[[AdaptedTask, tuple[Any, ...], dict[str, Any]], Any]

_runner: TaskRunner | None = None


def set_task_runner(runner: TaskRunner | None) -> None:
    """Fill the slot: workers call tasks through it."""
    global _runner
    _runner = runner


def is_celery_task(value: Any) -> bool:
    """Whether the value is a Celery task, or the lazy proxy of one."""
    return all(hasattr(value, name) for name in ("run", "name", "apply_async", "max_retries"))


def adapted_task(
    task: Any, given: Mapping[str, Any]
) -> tuple[Callable[..., Any], dict[str, Any], AdaptedTask]:
    """Return the function and the options of a facet; `given` overrides the task's own."""
    adapted = AdaptedTask(task, "retry" in given, frozenset(given))
    options: dict[str, Any] = {"name": task.name}
    if getattr(task, "queue", None):
        options["task_list"] = task.queue
    if getattr(task, "time_limit", None):
        options["timeout"] = task.time_limit
    options["retry"] = _retry_policy(task)
    if rate := _rate(task):
        options["rate"] = rate
    if (on_loss := _on_loss(task)) is not None:
        options["on_loss"] = on_loss
    if getattr(task, "priority", None):
        options["priority"] = run_priority(task.priority, task.app)
    options.update(given)
    # Celery wraps `run` for autoretry; the wrapper preserves the signature.
    wraps = getattr(task.run, "__func__", task.run)

    @functools.wraps(wraps)
    def run(*args: Any, **kwargs: Any) -> Any:
        return task.run(*args, **kwargs) if _runner is None else _runner(adapted, args, kwargs)

    if is_errback(task):
        return errback_function(task, run), options, adapted
    # The signature of a bound task has no `self`.
    run.__signature__ = inspect.signature(task.run)  # type: ignore[attr-defined]
    return run, options, adapted


def report_losses(task: Any, findings: list[TaskFinding], *, strict: bool) -> None:
    """Warn of everything that a step cannot carry over, at its line; with `strict` refuse it."""
    if strict and findings:
        listed = "; ".join(f"{where.file}:{where.line}: {what}" for where, what in findings)
        raise AuthoringError(f"task {task.name!r} loses something as a step: {listed}")
    for where, what in findings:
        shown = f"task {task.name!r} as a step: {what}"
        warnings.warn_explicit(shown, CeleryTaskWarning, where.file, max(1, where.line))


def _retry_policy(task: Any) -> RetryPolicy:
    """Return the policy that shows the retries of a task. Celery's code decides on each of them."""
    kwargs = {"max_retries": task.max_retries, **(getattr(task, "retry_kwargs", None) or {})}
    most, backoff = kwargs["max_retries"], getattr(task, "retry_backoff", False)
    wait = kwargs.get("countdown", backoff or task.default_retry_delay)
    return RetryPolicy(
        attempts=MAX_COUNT if most is None else 1 + most,
        first_wait=float(wait),
        factor=2.0 if backoff else 1.0,
        max_wait=float(getattr(task, "retry_backoff_max", 600)) if backoff else float(wait),
        jitter=1.0 if backoff and getattr(task, "retry_jitter", True) else 0.0,
        # Not a timeout, as in Celery. A retry that the task asks for needs no name here.
        on=tuple(getattr(task, "autoretry_for", None) or ()) or ("Retry",),
        never_on=tuple(getattr(task, "dont_autoretry_for", None) or ()),
    )


def _rate(task: Any) -> Rate | None:
    """Return `rate_limit` as a rate of the fleet; Celery's is one of each worker."""
    limit = getattr(task, "rate_limit", None)
    if not limit:
        return None
    number, _, period = str(limit).partition("/")
    try:
        count, per = float(number), _PERIODS[period or "s"]
    except (ValueError, KeyError):
        raise AuthoringError(
            f"task {task.name!r}: rate_limit={limit!r} is no rate of Celery; write it as '10/s', "
            "'10/m' or '10/h', or pass rate=Rate(…)"
        ) from None
    if count <= 0:  # Celery: no limit
        return None
    if not count.is_integer():
        count, per = 1, per / count
    elif count > MAX_RATE_COUNT:
        count, per = MAX_RATE_COUNT, per * MAX_RATE_COUNT / count
    return Rate(task.name, round(count), per)


def _on_loss(task: Any) -> str | None:
    """Return whether a lost try is repeated, if the author of the task has decided that.

    `acks_late` is False by default, so it is a decision only beside `task_acks_late`.
    """
    if getattr(task, "acks_late", False):
        return "retry"
    return "fail" if getattr(task.app.conf, "task_acks_late", False) else None


def run_priority(priority: int, app: Any) -> int:
    """Return a priority of Celery as that of a run; 0 is the highest one of queues in Redis."""
    broker = str(app.conf.broker_url or "")
    return -priority if broker.startswith(("redis", "sentinel")) else int(priority)


def route_of(task: Any) -> TaskListSource:
    """Return a function that asks the task's app where its messages go."""

    def find(_name: str) -> str | None:
        route = task.app.amqp.router.route({}, task.name, task_type=task)
        queue = route.get("queue")
        return None if queue is None else str(getattr(queue, "name", queue))

    return find

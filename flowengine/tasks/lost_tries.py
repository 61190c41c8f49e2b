"""Tries of tasks that end with their pool child: the main process sends Celery's signals for them.

The sender is the task that the child was running, and not the message that woke it up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from billiard.einfo import ExceptionInfo
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery import signals
from celery.app.task import Context
from celery.exceptions import Ignore, Reject, Retry
from celery.worker.request import Request
from celery.worker.state import task_ready

from flowengine.authoring import event_facet_named
from flowengine.store.recovery_queries import HeldTask
from flowengine.worker.pool_children import TryEnd


def send_end(held: HeldTask, end: TryEnd) -> None:
    """Send the signal for a try that has ended with its process, if its code is a Celery task."""
    facet = event_facet_named(held.name)
    if facet is None or facet.celery_task is None:
        return
    task = facet.celery_task.task
    if end is TryEnd.CANCELED:
        request = Context(
            id=held.step_id, task=task.name, root_id=held.run_id, called_directly=False
        )
        told = {"terminated": True, "signum": "SIGKILL", "expired": False}
        signals.task_revoked.send(sender=task, request=request, **told)
        return
    problem: Exception = WorkerLostError(f"pool child {held.pid} died in {held.step_path}")
    if end is TryEnd.TIMED_OUT:
        problem = TimeLimitExceeded((held.timeout_ms or 0) / 1000)
    send_failure(task, held.step_id, problem)


def send_failure(
    task: Any,
    step_id: str,
    problem: BaseException,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Send `task_failure` for a try that Celery's tracer has not seen the end of."""
    try:
        raise problem  # one that was made here has no traceback yet, which its info needs
    except BaseException as raised:
        found, problem = ExceptionInfo(), raised
    signals.task_failure.send(
        sender=task,
        task_id=step_id,
        exception=problem,
        args=args,
        kwargs=dict(kwargs),
        traceback=problem.__traceback__,
        einfo=found,
    )


class WakeupRequest(Request):  # type: ignore[misc]
    """A message that only woke a worker: the death of its pool child is no failure of it.

    The heartbeat of the worker finds the tries that were lost, reports and logs them.
    """

    def on_failure(self, exc_info: Any, *args: Any, **options: Any) -> Any:
        problem = getattr(exc_info.exception, "exc", exc_info.exception)
        if isinstance(problem, Ignore | Reject | Retry | MemoryError):
            return super().on_failure(exc_info, *args, **options)
        task_ready(self)
        return None

    def on_timeout(self, soft: bool, timeout: float) -> None:
        if soft:
            super().on_timeout(soft, timeout)
        else:
            task_ready(self)

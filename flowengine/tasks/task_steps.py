"""Steps that are Celery tasks: each try is one call by Celery's own tracer.

So the task has its request, its hooks and its custom `__call__`, the signals of the app are sent
with the task as sender, and an agent that instruments Celery sees the task. Nothing is published
and nothing is written to the result backend: the outcome is the step's. `self.retry()` ends the
try, and the step waits for the countdown.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import socket
import threading
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import signals
from celery.app import trace
from celery.app.task import Context
from celery.exceptions import Ignore, Reject, Retry
from celery.states import FAILURE, RETRY
from celery.utils.log import get_logger

from flowengine.authoring import event_facet_named
from flowengine.authoring.celery_tasks import AdaptedTask, set_task_runner
from flowengine.engine.handles import executing
from flowengine.errors import DoesNotFit, GiveUp, RetryAfter, ValueRefused
from flowengine.program.event_options import RetryPolicy
from flowengine.tasks.lost_tries import send_failure
from flowengine.tasks.soft_limit import SoftLimit
from flowengine.tasks.task_methods import STEP, StepCall, patch_task_methods, step_call
from flowengine.worker.step_context import NotInAStep, StepContext, current_step

_OURS = ("celery.", "billiard.", "sentry_sdk.")  #: callers of the code, left out of tracebacks
_REJECTED = 1.0  #: seconds until a try after ``Reject(requeue=True)``
_lock = threading.Lock()
_calls: dict[AdaptedTask, _Call] = {}


def offer_task_steps() -> None:
    """Have steps that are Celery tasks called so in this process. Idempotent."""
    set_task_runner(run_task)
    patch_task_methods()
    logger = get_logger("celery.app.trace")
    if _no_results not in logger.filters:
        logger.addFilter(_no_results)


def run_task(adapted: AdaptedTask, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a task: for the current step if it is the task's own, otherwise as plain Python."""
    try:
        step = current_step()
    except NotInAStep:
        return adapted.task.run(*args, **kwargs)
    facet = event_facet_named(step.facet)
    if facet is None or facet.celery_task is not adapted or _is_called(adapted.task, step):
        return adapted.task.run(*args, **kwargs)
    call = _calls.get(adapted)
    if call is None:
        with _lock:
            call = _calls.setdefault(adapted, _Call(adapted))
    return call.run(step, facet.definition.given.retry, args, kwargs)


def _is_called(task: Any, step: StepContext) -> bool:
    """Whether the try is inside its call already: its code calls itself as plain Python."""
    call = step_call(task.request)
    return call is not None and call.path == step.path


class _StepInfo(trace.TraceInfo):  # type: ignore[misc]
    """Sends signals and calls hooks of a failed try, without the result backend.

    The policy of the facet decides whether the try is one that is retried, or the failure of the
    task. The engine logs failed tries and failed runs itself.
    """

    state: str
    retval: Any

    def handle_error_state(self, task: Any, req: Any, **_: Any) -> Any:
        call = step_call(req)
        if call is not None and self.state == FAILURE and call.retries(self.retval):
            self.state, self.retval = RETRY, Retry(exc=self.retval)
        elif call is not None and self.state == RETRY and not call.has_another_try:
            error = self.retval.exc
            self.state = FAILURE
            self.retval = error if isinstance(error, BaseException) else self.retval
        handle = {RETRY: self.handle_retry, FAILURE: self.handle_failure}[self.state]
        return handle(task, req, store_errors=False, call_errbacks=False)

    def _log_error(self, task: Any, req: Any, einfo: Any) -> None:
        pass


class _NoResults(logging.Filter):
    """Drops Celery's lines about tries of steps: they show results, which may be confidential."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            step = current_step()
        except NotInAStep:
            return True
        return not isinstance(record.args, dict) or record.args.get("id") != step.idempotency_key


_no_results = _NoResults()


class _Call:
    """Calls one task for the tries of its steps."""

    def __init__(self, adapted: AdaptedTask) -> None:
        self._adapted = adapted
        self._task = task = adapted.task
        self._required = [
            name
            for name, parameter in inspect.signature(task.run).parameters.items()
            if parameter.default is parameter.empty
            and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        ]
        plugin = getattr(task.app, "flowengine", None)
        self._hostname = getattr(plugin, "hostname", "") or socket.gethostname()
        # By its module: agents that instrument Celery replace this function.
        self._trace = trace.build_tracer(
            *(task.name, task), app=task.app, hostname=self._hostname, Info=_StepInfo
        )

    def run(
        self,
        step: StepContext,
        policy: RetryPolicy,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        task, step_id = self._task, step.idempotency_key
        args, kwargs = self._as_sent(args, kwargs)
        request = self._request(step)
        request[STEP] = StepCall(self._adapted, policy, step.path, step_id, step.try_number)
        self._refuse_expired(step, request)
        limit = getattr(task, "soft_time_limit", None)
        try:
            with SoftLimit(float(limit)) if limit else nullcontext():
                result, info, *_ = self._trace(step_id, args, kwargs, request)
        except Exception:
            raise
        except BaseException as problem:  # Celery leaves it to the end of the process
            send_failure(task, step_id, problem, args, kwargs)
            raise
        if info is not None:
            self._raise(info.state, info.retval)
        if isinstance(result, ExceptionInfo):  # an error of a hook
            raise _shortened(result.exception)
        return self._kept(step, result)

    def _as_sent(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments as code usually sends them, and as hooks expect them.

        Those without a default by position, the others by name.
        """
        if args:
            return args, kwargs
        first = [kwargs[name] for name in itertools.takewhile(kwargs.__contains__, self._required)]
        rest = {n: v for n, v in kwargs.items() if n not in self._required[: len(first)]}
        return tuple(first), rest

    def _request(self, step: StepContext) -> dict[str, Any]:
        """Return the request of a try: the same id for all tries of a step."""
        task, claimed = self._task, step.task
        assert claimed is not None
        return {
            "id": step.idempotency_key,
            "task": task.name,
            "root_id": step.run_id,
            "parent_id": step.run_id,
            "correlation_id": step.idempotency_key,
            "retries": step.try_number - 1,
            "delivery_info": {
                "exchange": "",
                "routing_key": claimed.task_list_name,
                "priority": getattr(task, "priority", None),
                "redelivered": claimed.losses > 0,
            },
            "headers": {
                "flowengine-run": step.run_id,
                "flowengine-step": step.path,
                "flowengine-tenant": step.tenant,
            },
            "timelimit": [task.time_limit, task.soft_time_limit],
            "hostname": self._hostname,
            "origin": f"flowengine@{self._hostname}",
            "lang": "py",
            "ignore_result": True,
            "is_eager": False,
            "utc": True,
        }

    def _refuse_expired(self, step: StepContext, request: dict[str, Any]) -> None:
        limit = getattr(self._task, "expires", None)
        if not isinstance(limit, int | float) or step.try_number > 1:
            return
        assert step.task is not None
        caller = executing.get()
        assert caller is not None
        with caller[0].database.read() as session:
            waited = (session.now() - step.task.created) / 1000
        if waited > limit:
            shown = Context(request, called_directly=False)
            sent = {"terminated": False, "signum": None, "expired": True}
            signals.task_revoked.send(sender=self._task, request=shown, **sent)
            raise GiveUp(f"it expired: it waited {waited:.0f} s, and the task has expires={limit}")

    def _raise(self, state: str, problem: BaseException) -> None:
        """Raise the end of a try that has not succeeded."""
        if isinstance(problem, Retry):
            self._raise_retry(problem)
        if isinstance(problem, Reject) and problem.requeue:
            raise RetryAfter(_REJECTED, f"rejected by the task: {problem.reason}")
        if isinstance(problem, Ignore | Reject):
            raise GiveUp(
                f"{self._task.name} raised {type(problem).__name__}: a step ends with a result or "
                "an error; return a value, or raise GiveUp"
            )
        raise _shortened(problem)

    def _raise_retry(self, asked: Retry) -> None:
        error = asked.exc if isinstance(asked.exc, BaseException) else None
        if asked.when is None:  # the policy of the facet decides
            raise (_shortened(error) if error is not None else asked)
        seconds = max(0.0, _seconds_until(asked.when))
        if error is None:
            raise RetryAfter(seconds, asked.message or f"{self._task.name} asks for a retry")
        raise RetryAfter(seconds) from _shortened(error)

    def _kept(self, step: StepContext, result: Any) -> Any:
        """Return the result of the step: nothing, if Celery would not store it and JSON cannot."""
        if not self._task.ignore_result:
            return result
        facet = event_facet_named(step.facet)
        with suppress(ValueRefused, DoesNotFit):
            if facet is not None:
                facet.written(result)
                return result
        return None


def _seconds_until(when: datetime | float) -> float:
    if not isinstance(when, datetime):
        return float(when)
    # As Celery: an eta without a time zone is in UTC.
    at = when if when.tzinfo else when.replace(tzinfo=UTC)
    return (at - datetime.now(UTC)).total_seconds()


def _shortened(problem: BaseException) -> BaseException:
    """Return the error with a traceback that begins at the code of the task."""
    found: TracebackType | None = problem.__traceback__
    while found is not None:
        module = found.tb_frame.f_globals.get("__name__", "")
        if not module.startswith((*_OURS, "flowengine.")):
            return problem.with_traceback(found)
        found = found.tb_next
    return problem

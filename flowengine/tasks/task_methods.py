"""Methods of Celery tasks that mean something else in a step: `retry`, `replace`, `update_state`.

They are replaced in Celery's class, and look at the request: outside a step each is Celery's own.
So a base class that overrides one of them is called, and its `super()` call ends here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery.app.task import Task
from celery.exceptions import Retry

from flowengine.authoring.celery_tasks import AdaptedTask
from flowengine.errors import GiveUp, ValueRefused
from flowengine.evaluator.events import wait_before
from flowengine.program.event_options import RetryPolicy
from flowengine.worker.breakers import PERMANENT
from flowengine.worker.step_context import current_step

STEP = "flowengine_step"  #: the attribute of a request that belongs to a step


@dataclass(frozen=True, slots=True)
class StepCall:
    """The try that a task is called for, and the policy that its step has."""

    adapted: AdaptedTask
    policy: RetryPolicy
    path: str
    step_id: str
    try_number: int

    @property
    def has_another_try(self) -> bool:
        return self.try_number < self.policy.attempts

    def retries(self, problem: BaseException) -> bool:
        """Whether the policy has another try after an error that the task does not retry itself."""
        if isinstance(problem, PERMANENT) or self.adapted.is_final(problem):
            return False
        kinds = [kind.__name__ for kind in type(problem).__mro__]
        return self.has_another_try and self.policy.covers(kinds)

    @property
    def wait(self) -> float:
        """The seconds that the policy waits before the next try."""
        return wait_before(self.policy, self.try_number, self.step_id)


def step_call(request: Any) -> StepCall | None:
    """Return the try that a request belongs to; None: it is one of a message."""
    found: StepCall | None = getattr(request, STEP, None)
    return found


def patch_task_methods() -> None:
    """Replace the methods. Idempotent."""
    methods: dict[str, Callable[..., Any]] = {
        "retry": _retry,
        "replace": _replace,
        "update_state": _update_state,
    }
    for name, in_step in methods.items():
        method = getattr(Task, name)
        if not hasattr(method, "__wrapped__"):
            setattr(Task, name, _in_steps(method, in_step))


def _in_steps(method: Callable[..., Any], in_step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def chosen(task: Any, *args: Any, **kwargs: Any) -> Any:
        call = step_call(task.request)
        if call is None:
            return method(task, *args, **kwargs)
        return in_step(task, call, *args, **kwargs)

    return chosen


def _retry(
    task: Any,
    call: StepCall,
    args: Any = None,
    kwargs: Any = None,
    exc: BaseException | None = None,
    throw: bool = True,
    eta: datetime | None = None,
    countdown: float | None = None,
    max_retries: int | None = None,
    **options: Any,
) -> Retry:
    """Ask for another try of the step."""
    request = task.request
    others = [*options, *(n for n, v in (("args", args), ("kwargs", kwargs)) if v is not None)]
    if others:
        raise GiveUp(
            f"{task.name} called self.retry({', '.join(f'{name}=…' for name in others)}): "
            "another try of a step has the arguments and the queue of the first one; let the "
            "workflow decide on others"
        )
    most = task.max_retries if max_retries is None else max_retries
    if most is not None and request.retries + 1 > most:
        if exc is not None:
            raise exc
        raise task.MaxRetriesExceededError(
            f"Can't retry {task.name}[{request.id}]: tried {request.retries + 1} times",
            task_args=request.args,
            task_kwargs=request.kwargs,
        )
    asked = Retry(exc=exc, when=_when(task, call, exc, eta, countdown))
    if throw:
        raise asked
    return asked


def _when(
    task: Any,
    call: StepCall,
    exc: BaseException | None,
    eta: datetime | None,
    countdown: float | None,
) -> datetime | float | None:
    """Return when the next try begins; None: the policy of the facet decides on the error."""
    given = countdown if eta is None else eta
    if not call.adapted.has_own_policy:
        return task.default_retry_delay if given is None else given
    is_automatic = isinstance(exc, tuple(getattr(task, "autoretry_for", None) or ()))
    # A backoff is an option of the task, which the policy replaces, and no countdown of its code.
    if is_automatic and (given is None or getattr(task, "retry_backoff", False)):
        return None
    return call.wait if given is None else given


def _replace(task: Any, _: StepCall, *__: Any, **___: Any) -> None:
    raise GiveUp(
        f"{task.name} called self.replace, and nothing was published: a step is replaced by a "
        "workflow; return its call, as in `return flow.call(…)`"
    )


def _update_state(
    task: Any, call: StepCall, task_id: Any = None, state: Any = None, meta: Any = None, **_: Any
) -> None:
    """Show the state as the progress of the try."""
    try:
        current_step().heartbeat(state if meta is None else meta)
    except ValueRefused:
        current_step().heartbeat()

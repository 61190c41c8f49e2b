"""Runs and steps in words, for terminal and pages: for what they wait, how long they took."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Any, Protocol

from flowengine.engine.results import FailedTry, RetryWait, StepStatus, duration, step_status
from flowengine.engine.try_records import Waited
from flowengine.engine.waits_for import WaitingStep, WaitKind, WaitsFor, step_waits_for, words
from flowengine.evaluator.states import StepState, TaskState
from flowengine.program.limits import clipped
from flowengine.shown_paths import shown_path

_DAY = 20 * 3_600_000  #: milliseconds from which on a time has its date
_SHORT_QUEUE = 100  #: milliseconds in a queue that are not shown


class TriedStep(WaitingStep, Protocol):
    """A step with its tries, as a terminal or a page shows it."""

    @property
    def path(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def created(self) -> int: ...
    @property
    def updated(self) -> int: ...
    @property
    def tries(self) -> int: ...
    @property
    def task_state(self) -> str | None: ...
    @property
    def retry_at(self) -> int | None: ...
    @property
    def allowed_tries(self) -> int | None: ...
    @property
    def failed_tries(self) -> Sequence[FailedTry]: ...
    @property
    def queued(self) -> int: ...
    @property
    def waited(self) -> Waited: ...
    @property
    def ran(self) -> int | None: ...
    @property
    def child_run(self) -> str | None: ...
    @property
    def error(self) -> Mapping[str, Any] | None: ...


def clock(now: int, *, zone: tzinfo | None = None) -> Callable[[int], str]:
    """Return the function that writes a time: with its date if it is not near.

    It is local, or in a time zone, which is named.
    """

    def written(milliseconds: int) -> str:
        moment = datetime.fromtimestamp(milliseconds / 1000, zone)
        is_near = abs(milliseconds - now) < _DAY
        text = f"{moment:%H:%M:%S}" if is_near else f"{moment:%Y-%m-%d %H:%M:%S}"
        return f"{text} {moment:%Z}" if zone else text

    return written


def status_and_label(
    step: TriedStep, now: int, *, zone: tzinfo | None = None
) -> tuple[StepStatus, str]:
    """Return the status of a step, and in words what it waits for."""
    wait = step_waits_for(step, now)
    status = step_status(step.state, step.task_state, wait)
    if status is StepStatus.RETRYING:
        return status, next_try(step, now)
    if wait is not None and wait.kind in _SAID:
        return status, words(wait, clock(now, zone=zone))
    return status, status.value


#: Waits that have a subject or an end; of the others the status says everything.
_SAID = frozenset(
    {
        *(WaitKind.ANSWER, WaitKind.TIME, WaitKind.DIVERGED),
        *(WaitKind.CIRCUIT, WaitKind.LIMIT, WaitKind.RATE),
    }
)


def retry_wait(wait: RetryWait, now: int) -> str:
    """Return for what a run waits that has a `retry`."""
    return _next_try(wait.due - now, wait.last, wait.number, wait.allowed)


def next_try(step: TriedStep, now: int) -> str:
    """Return for what a step waits that has a `retry_at`."""
    last = step.failed_tries[-1] if step.failed_tries else None
    return _next_try((step.retry_at or now) - now, last, step.tries, step.allowed_tries)


def _next_try(wait: int, last: FailedTry | None, number: int, allowed: int | None) -> str:
    after = f" after {last.error_text}" if last else ""
    return f"retries in {duration(wait)}{after} ({try_count(number, allowed)})"


def try_count(number: int, allowed: int | None) -> str:
    return f"try {number} of {allowed}" if allowed and allowed >= number else f"try {number}"


def elapsed(step: TriedStep, now: int) -> tuple[str, str]:
    """Return how long a step ran, and how long its tries waited for a worker, if that was long.

    A step without tries of its own, and one that waits for a child run, ran from its beginning to
    its end. Both are empty for a step that has not begun, and the time that it ran for one that was
    cancelled before it began.
    """
    if step.state in (StepState.CREATED, StepState.SKIPPED):
        return "", ""
    queued = duration(step.queued) if step.queued >= _SHORT_QUEUE else ""
    if step.ran is not None and step.child_run is None:
        return duration(step.ran), queued
    if step.task_state in (TaskState.PENDING, TaskState.WAITING) or _has_not_begun(step):
        return "", queued
    return duration((step.updated if step.state in StepState.FINAL else now) - step.created), ""


def _has_not_begun(step: TriedStep) -> bool:
    """Whether a cancelled step ran nowhere: the cancellation ended it itself, not a step below it.

    The root of the run is not meant: it has the cancellation as its error from the beginning.
    """
    if step.state != StepState.CANCELLED or step.child_run is not None or "." not in step.path:
        return False
    return step.error is not None and step.error.get("path") == step.path


def waits(step: TriedStep) -> list[str]:
    """Return why the tries of a step waited, without short waits and those for a worker."""
    waited = step.waited
    parts = {
        "backoff": waited.backoff,
        "held": waited.hold,
        "limit": waited.limit,
        "rate": waited.rate,
        "circuit": waited.circuit,
        "parked": waited.parked,
    }
    return [f"{name} {duration(ms)}" for name, ms in parts.items() if ms >= _SHORT_QUEUE]


def progress_text(progress: object) -> str:
    """Return a progress as readers see it: a share of 1 as a percentage."""
    if isinstance(progress, float) and 0 <= progress <= 1:
        return f"{progress:.0%}"
    return clipped(progress if isinstance(progress, str) else json.dumps(progress), 200)


def round_label(number: int, failed_in: int | None) -> str:
    """Return why a round failed that failed because of a later one; else nothing."""
    return f"failed in round {failed_in:,}" if failed_in not in (None, number) else ""


def round_time(step: TriedStep, own_time: int | None, now: int) -> str:
    """Return how long a round took without the rounds inside it."""
    return elapsed(step, now)[0] if own_time is None else duration(own_time)


def outstanding(
    open_steps: int,
    retry: RetryWait | None,
    now: int,
    wait: WaitsFor | None = None,
    *,
    zone: tzinfo | None = None,
) -> str:
    """Return for what an unfinished run waits."""
    steps = "1 step" if open_steps == 1 else f"{open_steps:,} steps"
    others = f"; {steps} outstanding" if open_steps > 1 else ""
    if wait is not None and wait.kind in (*_SAID, WaitKind.HOLD, WaitKind.CHILD_RUN):
        return f"{words(wait, clock(now, zone=zone))}{others}"
    if retry is None:
        return f"{steps} outstanding" if open_steps else ""
    return f"{shown_path(retry.path)} {retry_wait(retry, now)}{others}"

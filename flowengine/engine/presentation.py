"""Runs and steps in words, for terminal and pages: for what they wait, how long they took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from flowengine.engine.results import FailedTry, RetryWait, duration
from flowengine.evaluator.states import StepState, TaskState
from flowengine.shown_paths import shown_path

_SHORT_QUEUE = 100  #: milliseconds in a queue that are not shown


class TriedStep(Protocol):
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
    def ran(self) -> int | None: ...
    @property
    def child_run(self) -> str | None: ...


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
    its end. Both are empty for a step that has not begun.
    """
    if step.state in (StepState.CREATED, StepState.SKIPPED):
        return "", ""
    queued = duration(step.queued) if step.queued >= _SHORT_QUEUE else ""
    if step.ran is not None and step.child_run is None:
        return duration(step.ran), queued
    if step.task_state == TaskState.PENDING:
        return "", queued
    return duration((step.updated if step.state in StepState.FINAL else now) - step.created), ""


def round_label(number: int, failed_in: int | None) -> str:
    """Return why a round failed that failed because of a later one; else nothing."""
    return f"failed in round {failed_in:,}" if failed_in not in (None, number) else ""


def round_time(step: TriedStep, own_time: int | None, now: int) -> str:
    """Return how long a round took without the rounds inside it."""
    return elapsed(step, now)[0] if own_time is None else duration(own_time)


def outstanding(open_steps: int, retry: RetryWait | None, now: int) -> str:
    """Return for what an unfinished run waits."""
    steps = "1 step" if open_steps == 1 else f"{open_steps:,} steps"
    if retry is None:
        return f"{steps} outstanding" if open_steps else ""
    others = f"; {steps} outstanding" if open_steps > 1 else ""
    return f"{shown_path(retry.path)} {retry_wait(retry, now)}{others}"

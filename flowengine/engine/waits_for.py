"""The event that a step or a run waits for, derived from its rows, and the words for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from flowengine.evaluator.states import StepState, TaskState
from flowengine.program.standard import SLEEP, SLEEP_UNTIL, WAIT_FOR


class WaitKind(StrEnum):
    """In the order in which they are named for a run with several waiting steps."""

    HOLD = "hold"
    DIVERGED = "diverged"  #: a durable function, for code that fits its record
    ANSWER = "answer"
    CHILD_RUN = "child run"
    LIMIT = "limit"
    RATE = "rate"
    CIRCUIT = "circuit"
    RETRY = "retry"
    WORKER = "worker"
    TIME = "time"
    STEPS = "steps"  #: of the same run


_ORDER = {kind: place for place, kind in enumerate(WaitKind)}


@dataclass(frozen=True, slots=True)
class WaitsFor:
    """The next event that a step or a run needs. Times in milliseconds since the epoch."""

    kind: WaitKind
    #: The name of the question, circuit, limit, task list or function; the id of the child run; the
    #: path of the step of a run that waits for a time or a retry; the number of steps.
    subject: str
    since: int
    until: int | None = None  #: when the wait ends at the latest; None: nobody knows
    held_by: str = ""  #: of a queued run: the open run that has been in its way for longest


class WaitingStep(Protocol):
    """The part of a step that tells what it waits for."""

    @property
    def state(self) -> str: ...
    @property
    def facet(self) -> str: ...
    @property
    def updated(self) -> int: ...
    @property
    def task_state(self) -> str | None: ...
    @property
    def task_list(self) -> str | None: ...
    @property
    def task_due(self) -> int | None: ...
    @property
    def circuit(self) -> str: ...
    @property
    def blocked_on(self) -> str | None: ...
    @property
    def parked_until(self) -> int | None: ...
    @property
    def retry_at(self) -> int | None: ...
    @property
    def child_run(self) -> str | None: ...
    @property
    def wakes_at(self) -> int | None: ...
    @property
    def question(self) -> str: ...


def step_waits_for(step: WaitingStep, now: int) -> WaitsFor | None:
    """Return what a step waits for; None if it runs or has ended."""
    if step.state in StepState.FINAL:
        return None
    if step.state != StepState.EVENT_TRANSMIT:
        return WaitsFor(WaitKind.STEPS, "", step.updated)
    if step.facet == WAIT_FOR:
        return WaitsFor(WaitKind.ANSWER, step.question, step.updated, step.wakes_at)
    if step.facet in (SLEEP, SLEEP_UNTIL):
        return WaitsFor(WaitKind.TIME, "", step.updated, step.wakes_at)
    match step.task_state:
        case TaskState.RUNNING:
            return None
        case TaskState.IGNORED:
            return WaitsFor(WaitKind.CHILD_RUN, step.child_run or "", step.updated)
        case TaskState.HELD:
            return WaitsFor(WaitKind.HOLD, "", step.updated)
        case TaskState.WAITING if step.blocked_on:
            until = step.task_due if (step.task_due or 0) > now else None
            return blocked(step.blocked_on, step.updated, until)
    if step.parked_until is not None and step.parked_until > now:
        if not step.circuit:
            return WaitsFor(WaitKind.DIVERGED, step.facet, step.updated, step.parked_until)
        return WaitsFor(WaitKind.CIRCUIT, step.circuit, step.updated, step.parked_until)
    if step.retry_at is not None and step.retry_at > now:
        return WaitsFor(WaitKind.RETRY, "", step.updated, step.retry_at)
    if step.task_state is None:
        return WaitsFor(WaitKind.STEPS, "", step.updated)
    return WaitsFor(WaitKind.WORKER, step.task_list or "", step.task_due or step.updated)


def blocked(key: str, since: int, until: int | None = None) -> WaitsFor:
    """Return the wait for a key of a limit or a rate."""
    kind, _, name = key.partition(":")
    wait = WaitKind.RATE if kind == WaitKind.RATE else WaitKind.LIMIT
    return WaitsFor(wait, name, since, until)


def first_of(waits: Iterable[WaitsFor]) -> WaitsFor | None:
    """Return the wait of a run that is named, of those of its steps."""
    return min(waits, key=lambda w: (_ORDER[w.kind], w.until or 0, w.subject), default=None)


def words(wait: WaitsFor, clock: Callable[[int], str]) -> str:
    """Return a wait in words; `clock` writes the time at which it ends."""
    until = "" if wait.until is None else f" until {clock(wait.until)}"
    subject = f" {wait.subject!r}" if wait.subject else ""
    match wait.kind:
        case WaitKind.HOLD:
            return "is on hold"
        case WaitKind.DIVERGED:
            # No time: another check does not help before other code is deployed.
            return f"diverged: waits for fitting code of {wait.subject}"
        case WaitKind.ANSWER:
            return f"waits for the answer{subject}{until}" if subject else "waits for an answer"
        case WaitKind.CHILD_RUN:
            return f"waits for run {wait.subject[:8]}" if subject else "waits for another run"
        case WaitKind.LIMIT | WaitKind.RATE | WaitKind.CIRCUIT:
            holder = f", held by run {wait.held_by[:8]}" if wait.held_by else ""
            return f"waits for {wait.kind}{subject}{until}{holder}"
        case WaitKind.RETRY:
            return f"waits for its next try{until}"
        case WaitKind.WORKER:
            return "waits for a worker"
        case WaitKind.TIME:
            return f"sleeps{until}"
        case WaitKind.STEPS:
            return "waits for others"

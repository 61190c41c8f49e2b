"""Read models of runs and steps, with the labels shared by the terminal and the pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from flowengine.engine.status_words import Status, run_word, step_word
from flowengine.engine.try_records import NOT_WAITED, TryInfo, Waited
from flowengine.engine.waits_for import WaitKind, WaitsFor
from flowengine.evaluator.records import derived_id
from flowengine.evaluator.states import RunState, StepState, TaskState
from flowengine.program.limits import clipped
from flowengine.program.nodes import Json
from flowengine.program.standard import CHILD
from flowengine.shown_paths import shown_path
from flowengine.store.result_cache import CacheHit
from flowengine.store.shown_values import readable

_MAX_MESSAGE = 200  #: characters of the error of an earlier try


class ExecutionStatus:
    """How far an execution came. A failed run never says COMPLETED."""

    COMPLETED = "COMPLETED"
    PAUSED = "PAUSED"  #: waits for events
    ERROR = "ERROR"


_STATUS = {
    RunState.COMPLETED: ExecutionStatus.COMPLETED,
    RunState.FAILED: ExecutionStatus.ERROR,
    RunState.CANCELLED: ExecutionStatus.ERROR,
    **dict.fromkeys(RunState.OPEN, ExecutionStatus.PAUSED),
}


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """The state of a run after an evaluation."""

    success: bool
    workflow_id: str
    outputs: dict[str, Json]
    error: str | None
    iterations: int
    status: str


class _RunRecord:
    """Common properties of run records."""

    __slots__ = ()
    state: str
    error: dict[str, Any] | None

    @property
    def is_final(self) -> bool:
        return self.state in RunState.FINAL

    @property
    def status(self) -> Status:
        """Its state in one word: CRASHED is a failure by a loss."""
        return run_word(self.state, self.error)

    @property
    def error_text(self) -> str | None:
        """The error as one line: where it began, its kind, its message."""
        error = self.error
        if not error:
            return None
        return f"{shown_path(error['path'])}: {error['type']}: {error['message']}"


@dataclass(frozen=True, slots=True)
class RunInfo(_RunRecord):
    """A run as readers see it."""

    id: str
    workflow: str
    state: str
    outputs: dict[str, Json] | None
    error: dict[str, Any] | None
    alarm: str | None
    created: int
    updated: int
    finished: int | None
    revision: int
    open_steps: int
    key: str | None = None
    priority: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    parent: str | None = None  #: the run whose step started it
    tenant: str = ""
    retry: RetryWait | None = None  #: in a list: the step whose next try is due first
    waits_for: WaitsFor | None = None  #: None: a step of it runs, or it has ended
    forked_from: str | None = None  #: the run whose steps it took over

    def as_result(self) -> ExecutionResult:
        return ExecutionResult(
            success=self.state == RunState.COMPLETED,
            workflow_id=self.id,
            outputs=readable(self.outputs) or {},
            error=self.error_text,
            iterations=self.revision,
            status=_STATUS[self.state],
        )


@dataclass(frozen=True, slots=True)
class RunSummary(_RunRecord):
    """A run as one line of a list: without its values."""

    id: str
    workflow: str
    state: str
    error: dict[str, Any] | None
    alarm: str | None
    created: int
    finished: int | None
    open_steps: int
    key: str | None
    steps: int  #: created so far; a run creates steps while it runs
    steps_ended: int
    is_counted: bool = True  #: False: it has more steps, which were not counted
    tenant: str = ""
    retry: RetryWait | None = None  #: the step whose next try is due first
    waits_for: WaitsFor | None = None  #: None: a step of it runs, or it has ended


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """The unfinished runs of a tenant, in numbers."""

    tenant: str
    unfinished: int
    alarms: int  #: unfinished runs with an alarm
    oldest: int  #: when the oldest of them was started


def seen_state(state: str, task_state: str | None) -> str:
    """Return the state of a step as readers see it.

    A step with a recorded result is shown as complete, although the evaluator consumes it only
    with the last report of its join.
    """
    is_answered = state == StepState.EVENT_TRANSMIT and task_state == TaskState.COMPLETED
    return StepState.COMPLETE if is_answered else state


@dataclass(frozen=True, slots=True)
class FailedTry:
    """A try that failed, or was lost, and was followed by another one."""

    number: int
    ended: int
    type: str
    message: str

    @property
    def error_text(self) -> str:
        """The error on one line."""
        return f"{self.type}: {clipped(self.message, _MAX_MESSAGE)}"


@dataclass(frozen=True, slots=True)
class RetryWait:
    """A step of a run that waits for its next try."""

    path: str
    due: int
    number: int  #: of the next try
    allowed: int | None
    last: FailedTry


@dataclass(frozen=True, slots=True)
class StepInfo:
    """A step or block as readers see it."""

    id: str
    path: str
    object_type: str
    facet: str
    state: str
    parent: str | None
    key: str
    index: int
    params: dict[str, Any]
    returns: dict[str, Any]
    error: dict[str, Any] | None
    created: int
    updated: int
    tries: int = 0
    losses: int = 0
    task_state: str | None = None
    circuit: str = ""  #: the name of its circuit breaker
    parked_until: int | None = None  #: when a task is due again: of an open circuit, or diverged
    retry_at: int | None = None  #: when the next try is due, after one that failed
    allowed_tries: int | None = None  #: of a step with more than one try
    failed_tries: Sequence[FailedTry] = ()  #: all before the last try
    queued: int = 0  #: milliseconds that its tries could be claimed and waited for a worker
    waited: Waited = NOT_WAITED  #: of all its tries, by reason
    blocked_on: str | None = None  #: the limit or rate for which it waits
    progress: Json = None  #: as the code of its last try reported it
    all_tries: Sequence[TryInfo] = ()  #: each with its error, worker, times and waits
    ran: int | None = None  #: milliseconds that workers ran its tries; None: no try has begun
    child_run: str | None = None  #: the run that it has started
    wakes_at: int | None = None  #: when a step that waits without a worker stops waiting
    address: str = ""  #: its place in the program
    task_list: str | None = None
    task_due: int | None = None  #: when its last try was due, or is
    question: str = ""  #: the name of the answer that it waits for
    waits_for: WaitsFor | None = None  #: None: it runs or has ended
    #: Of a result from the cache: the run and the path of the step that had it, and when.
    cached_from: CacheHit | None = None

    @property
    def status(self) -> Status:
        """Its state in one word: CRASHED is a failure by a loss."""
        return step_word(self.state, self.task_state, self.retry_at, self.error)


def child_run_id(step_id: str) -> str:
    """Return the id of the run that a step starts."""
    return derived_id(step_id, "run")


def child_run_of(step_id: str, facet: str, state: str, handed: str | None) -> str | None:
    """Return the run that a step has started, if it has; `handed` is the one it waits for."""
    has_started = facet == CHILD and state == StepState.COMPLETE
    return child_run_id(step_id) if has_started else handed


class StepStatus(StrEnum):
    """The status of a step: its label and its symbol."""

    symbol: str

    def __new__(cls, label: str, symbol: str) -> Self:
        status = str.__new__(cls, label)
        status._value_, status.symbol = label, symbol
        return status

    COMPLETE = "complete", "✓"
    FAILED = "failed", "✗"
    SKIPPED = "skipped", "↷"
    CANCELLED = "cancelled", "⊗"
    CREATED = "waits for others", "·"
    WAITING = "waits for a worker", "◌"
    HELD = "held", "‖"
    LIMITED = "waits for a limit", "⊟"
    RATED = "waits for a rate", "⊟"
    PARKED = "waits for a circuit", "⊘"
    DIVERGED = "waits for fitting code", "⊘"
    RETRYING = "waits for its next try", "↻"
    RUNNING = "running", "▶"
    CHILD_RUN = "waits for another run", "⇢"
    SLEEPING = "sleeps", "☾"
    ASKING = "waits for an answer", "?"
    SUSPENDED = "waits for its calls", "◔"
    IN_PROGRESS = "in progress", "…"


_STATUSES = {
    StepState.COMPLETE: StepStatus.COMPLETE,
    StepState.ERROR: StepStatus.FAILED,
    StepState.SKIPPED: StepStatus.SKIPPED,
    StepState.CANCELLED: StepStatus.CANCELLED,
    StepState.CREATED: StepStatus.CREATED,
    StepState.EVENT_TRANSMIT: StepStatus.WAITING,
    StepState.SUSPENDED: StepStatus.SUSPENDED,
}

_BY_TASK_STATE = {
    TaskState.RUNNING: StepStatus.RUNNING,
    TaskState.HELD: StepStatus.HELD,
    TaskState.IGNORED: StepStatus.CHILD_RUN,
    TaskState.WAITING: StepStatus.LIMITED,
}


_BY_WAIT = {
    WaitKind.WORKER: StepStatus.WAITING,
    WaitKind.RETRY: StepStatus.RETRYING,
    WaitKind.TIME: StepStatus.SLEEPING,
    WaitKind.ANSWER: StepStatus.ASKING,
    WaitKind.CHILD_RUN: StepStatus.CHILD_RUN,
    WaitKind.LIMIT: StepStatus.LIMITED,
    WaitKind.RATE: StepStatus.RATED,
    WaitKind.CIRCUIT: StepStatus.PARKED,
    WaitKind.DIVERGED: StepStatus.DIVERGED,
    WaitKind.HOLD: StepStatus.HELD,
}


def step_status(
    state: str, task_state: str | None = None, wait: WaitsFor | None = None
) -> StepStatus:
    if wait is not None and wait.kind in _BY_WAIT:
        return _BY_WAIT[wait.kind]
    if state == StepState.EVENT_TRANSMIT and task_state in _BY_TASK_STATE:
        return _BY_TASK_STATE[task_state]
    return _STATUSES.get(state, StepStatus.IN_PROGRESS)


def duration(milliseconds: int) -> str:
    seconds = max(0, milliseconds) / 1000
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} days"

"""Labels and symbols shared by the terminal and the pages."""

from __future__ import annotations

from enum import StrEnum

from flowengine.evaluator.states import StepState, TaskState


class StepStatus(StrEnum):
    """The status of a step, with its label."""

    COMPLETE = "complete"
    FAILED = "failed"
    SKIPPED = "skipped"
    CREATED = "waits for others"
    WAITING = "waits for a worker"
    PARKED = "waits for a circuit"
    RUNNING = "running"
    CHILD_RUN = "waits for another run"
    IN_PROGRESS = "in progress"


SYMBOLS = {
    StepStatus.COMPLETE: "✓",
    StepStatus.FAILED: "✗",
    StepStatus.SKIPPED: "↷",
    StepStatus.CREATED: "·",
    StepStatus.WAITING: "◌",
    StepStatus.PARKED: "⊘",
    StepStatus.RUNNING: "▶",
    StepStatus.CHILD_RUN: "⇢",
    StepStatus.IN_PROGRESS: "…",
}

_STATUSES = {
    StepState.COMPLETE: StepStatus.COMPLETE,
    StepState.ERROR: StepStatus.FAILED,
    StepState.SKIPPED: StepStatus.SKIPPED,
    StepState.CREATED: StepStatus.CREATED,
    StepState.EVENT_TRANSMIT: StepStatus.WAITING,
}

_BY_TASK_STATE = {TaskState.RUNNING: StepStatus.RUNNING, TaskState.IGNORED: StepStatus.CHILD_RUN}


def step_status(
    state: str, task_state: str | None = None, *, is_parked: bool = False
) -> StepStatus:
    """Return the status of a step from its state and the state of its last task."""
    if state == StepState.EVENT_TRANSMIT and is_parked:
        return StepStatus.PARKED
    if state == StepState.EVENT_TRANSMIT and task_state in _BY_TASK_STATE:
        return _BY_TASK_STATE[task_state]
    return _STATUSES.get(state, StepStatus.IN_PROGRESS)


def breaker_wait(circuit: str, until: str) -> str:
    """Return the label of a parked step."""
    return f"waits for circuit {circuit!r} until {until}"


def duration(milliseconds: int) -> str:
    """Return a duration in readable units."""
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

"""Words for people, the same wherever they look: terminal or page. Colours are each view's own."""

from __future__ import annotations

from enum import StrEnum

from flowengine.evaluator.states import StepState, TaskState


class Look(StrEnum):
    """How a step stands, in one word; its sign is beside it."""

    COMPLETE = "complete"
    FAILED = "failed"
    SKIPPED = "skipped"
    CREATED = "waits for others"
    WAITING = "waits for a worker"
    PARKED = "waits for a circuit"
    RUNNING = "running"
    HANDED_OVER = "waits for another run"
    UNDER_WAY = "under way"


SIGNS = {
    Look.COMPLETE: "✓",
    Look.FAILED: "✗",
    Look.SKIPPED: "↷",
    Look.CREATED: "·",
    Look.WAITING: "◌",
    Look.PARKED: "⊘",
    Look.RUNNING: "▶",
    Look.HANDED_OVER: "⇢",
    Look.UNDER_WAY: "…",
}

_LOOKS = {
    StepState.COMPLETE: Look.COMPLETE,
    StepState.ERROR: Look.FAILED,
    StepState.SKIPPED: Look.SKIPPED,
    StepState.CREATED: Look.CREATED,
    StepState.EVENT_TRANSMIT: Look.WAITING,
}

_AT_THE_EVENT = {TaskState.RUNNING: Look.RUNNING, TaskState.IGNORED: Look.HANDED_OVER}


def look(state: str, task_state: str | None = None, *, is_parked: bool = False) -> Look:
    """Return how a step stands, from its state and that of its last try."""
    if state == StepState.EVENT_TRANSMIT and is_parked:
        return Look.PARKED
    if state == StepState.EVENT_TRANSMIT and task_state in _AT_THE_EVENT:
        return _AT_THE_EVENT[task_state]
    return _LOOKS.get(state, Look.UNDER_WAY)


def circuit_wait(circuit: str, until: str) -> str:
    """Say what a parked step waits for."""
    return f"waits for circuit {circuit!r} until {until}"


def duration(milliseconds: int) -> str:
    """Write a duration as people say it."""
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

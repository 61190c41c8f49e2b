"""The status of a run or a step in one word: eight words for everything that can be shown. Pure.

States have more detail: see `evaluator/states.py`. CRASHED is a failure by a loss: the process that
ran it died, and no further try was allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from flowengine.evaluator.states import RunState, StepState, TaskState

WORKER_LOST = "WorkerLost"  #: the type of the error of a lost try


class Status(StrEnum):
    PENDING = "PENDING"  #: it has not begun
    RUNNING = "RUNNING"
    WAITING = "WAITING"  #: for a time, an answer, a limit, a retry, a release or another run
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CRASHED = "CRASHED"  #: failed, because the process that ran it was lost
    SKIPPED = "SKIPPED"
    CANCELLED = "CANCELLED"


_OF_RUN = {
    RunState.QUEUED: Status.PENDING,
    RunState.RUNNING: Status.RUNNING,
    RunState.HELD: Status.WAITING,
    RunState.CANCELLING: Status.RUNNING,
    RunState.COMPLETED: Status.COMPLETED,
    RunState.FAILED: Status.FAILED,
    RunState.CANCELLED: Status.CANCELLED,
}
_OF_STEP = {
    StepState.CREATED: Status.PENDING,
    StepState.COMPLETE: Status.COMPLETED,
    StepState.ERROR: Status.FAILED,
    StepState.SKIPPED: Status.SKIPPED,
    StepState.CANCELLED: Status.CANCELLED,
}
_OF_TASK = {TaskState.PENDING: Status.PENDING, TaskState.RUNNING: Status.RUNNING}


def run_word(state: str, error: Mapping[str, Any] | None) -> Status:
    return _crashed(_OF_RUN[state], error)


def step_word(
    state: str, task_state: str | None, retry_at: int | None, error: Mapping[str, Any] | None
) -> Status:
    if state == StepState.EVENT_TRANSMIT:
        is_retry = task_state == TaskState.PENDING and retry_at is not None
        return Status.WAITING if is_retry else _OF_TASK.get(task_state or "", Status.WAITING)
    return _crashed(_OF_STEP.get(state, Status.RUNNING), error)


def _crashed(status: Status, error: Mapping[str, Any] | None) -> Status:
    is_lost = status is Status.FAILED and error is not None and error["type"] == WORKER_LOST
    return Status.CRASHED if is_lost else status

"""The status of runs and steps in one word."""

from __future__ import annotations

import pytest

from flowengine.engine.status_words import Status, run_word, step_word
from flowengine.evaluator.states import RunState, StepState, TaskState

LOST = {"type": "WorkerLost", "message": "the worker died", "path": "w"}
OTHER = {"type": "ValueError", "message": "no rows", "path": "w"}


def test_every_state_of_a_run_has_a_word_and_a_failure_by_a_loss_is_a_crash() -> None:
    words = {state: run_word(state, None) for state in RunState.ALL}
    assert set(words.values()) == {*Status} - {Status.SKIPPED, Status.CRASHED}
    assert run_word(RunState.FAILED, OTHER) is Status.FAILED
    assert run_word(RunState.FAILED, LOST) is Status.CRASHED


@pytest.mark.parametrize(
    ("state", "task_state", "retry_at", "word"),
    [
        (StepState.CREATED, None, None, "PENDING"),
        (StepState.EVENT_TRANSMIT, TaskState.PENDING, None, "PENDING"),
        (StepState.EVENT_TRANSMIT, TaskState.RUNNING, None, "RUNNING"),
        (StepState.EVENT_TRANSMIT, TaskState.PENDING, 5, "WAITING"),
        (StepState.EVENT_TRANSMIT, TaskState.WAITING, None, "WAITING"),
        (StepState.EVENT_TRANSMIT, TaskState.HELD, None, "WAITING"),
        (StepState.EVENT_TRANSMIT, None, None, "WAITING"),
        (StepState.COMPLETE, TaskState.COMPLETED, None, "COMPLETED"),
        (StepState.SKIPPED, None, None, "SKIPPED"),
        (StepState.CANCELLED, None, None, "CANCELLED"),
    ],
)
def test_a_step_has_one_word(
    state: str, task_state: str | None, retry_at: int | None, word: str
) -> None:
    assert step_word(state, task_state, retry_at, None) == word


def test_a_step_that_was_lost_has_crashed() -> None:
    assert step_word(StepState.ERROR, TaskState.FAILED, None, OTHER) is Status.FAILED
    assert step_word(StepState.ERROR, TaskState.FAILED, None, LOST) is Status.CRASHED

"""Errors of steps: what failed, why, and where it began.

An error keeps the path at which it began. The rows above repeat it unchanged, so that
the error of a run names the step to look at and not the way up.
"""

from __future__ import annotations

from flowengine.evaluator.records import Error, Step
from flowengine.evaluator.states import StepState


class StepFailed(Exception):
    """The step being worked on ends with this error."""

    def __init__(self, error: Error) -> None:
        super().__init__(error)
        self.error = error


class StepSkipped(Exception):
    """The step being worked on cannot run, because another did not complete."""

    def __init__(self, cause: Step) -> None:
        super().__init__(cause.path)
        self.error = skipped_because(cause)


def problem(kind: str, message: str, path: str) -> Error:
    return {"type": kind, "message": message, "path": path}


def in_spite_of(error: Error, earlier: Error) -> Error:
    """The error of a catch or always block that failed in its turn: both are told."""
    first = f"{earlier['path']}: {earlier['type']}: {earlier['message']}"
    message = f"{error['message']} (while handling {first})"
    return {**error, "message": message, "cause": earlier}


def skipped_because(cause: Step) -> Error:
    """The reason of a skipped step: the failed ancestor, however far back."""
    assert cause.error is not None
    if cause.state == StepState.SKIPPED:
        return cause.error
    message = f"skipped: {cause.path} failed: {cause.error['message']}"
    return {"type": "Skipped", "message": message, "path": cause.error["path"]}


def note_failure(parent: Step, child: Step) -> None:
    """Keep the first failure in program order, errors before skips.

    The order in time must not show: the same failures in any order leave the same error.
    """
    assert child.error is not None
    rank = [0 if child.state == StepState.ERROR else 1, child.index]
    count = 1 + (parent.failure["count"] if parent.failure else 0)
    if parent.failure and parent.failure["rank"] <= rank:
        parent.failure = {**parent.failure, "count": count}
    else:
        parent.failure = {"rank": rank, "error": child.error, "count": count}

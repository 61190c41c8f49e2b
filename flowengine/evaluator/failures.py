"""Errors of steps: what failed, why, and where it began.

An error keeps the path at which it began. The rows above repeat it unchanged, so that
the error of a run names the step to look at and not the way up.
"""

from __future__ import annotations

from flowengine.evaluator.records import Error, Step
from flowengine.evaluator.states import ObjectType, StepState


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


#: Of the failed items of a foreach so many are told in its error.
MOST_TOLD = 10


def note_failure(parent: Step, child: Step) -> None:
    """Keep the first failure in program order, errors before skips.

    The order in time must not show: the same failures in any order leave the same error.
    """
    assert child.error is not None
    rank = [0 if child.state == StepState.ERROR else 1, child.index]
    before = parent.failure
    count = 1 + (before["count"] if before else 0)
    first = before if before and before["rank"] <= rank else {"rank": rank, "error": child.error}
    parent.failure = {**first, "count": count}
    if parent.object_type == ObjectType.FAN:
        told = [*(before["items"] if before else ()), [rank, item_error(child)]]
        parent.failure["items"] = sorted(told, key=lambda entry: entry[0])[:MOST_TOLD]


def item_error(item: Step) -> Error:
    """How the failure of an item is told by its foreach."""
    assert item.error is not None
    told = {name: item.error[name] for name in ("type", "message", "path")}
    return {"index": item.index, **told}

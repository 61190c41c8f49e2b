"""Errors of steps.

An error holds the path of the step that failed first. The rows above refer to it by that path and
repeat the beginning of its message, so that the error of a run names that step. The whole message
and the traceback are stored once: with many steps around a long message, copies would fill the
database.
"""

from __future__ import annotations

from flowengine.evaluator.records import Error, Step
from flowengine.evaluator.states import ObjectType, Signal, StepState
from flowengine.program.limits import Limits, clipped


class StepFailed(Exception):
    """The step being worked on ends with this error."""

    def __init__(self, kind: str, message: str, path: str) -> None:
        super().__init__(message)
        self.error = problem(kind, message, path)


class StepSkipped(Exception):
    """The step being worked on cannot run, because another did not complete."""

    def __init__(self, cause: Step) -> None:
        super().__init__(cause.path)
        self.error = skipped_because(cause)


class Refused(Exception):
    """An action is refused, for this reason. Raised before anything of it is changed."""


def problem(kind: str, message: str, path: str) -> Error:
    return {"type": kind, "message": message, "path": path}


def limited(error: Error, limits: Limits) -> Error:
    """The error with a message and a traceback of at most the allowed length."""
    most, trace = limits.max_error_length, error.get("traceback", "")
    if len(error["message"]) <= most and len(trace) <= most:
        return error
    error = {**error, "message": clipped(error["message"], most)}
    return {**error, "traceback": trace[-most:]} if trace else error


def excerpt(error: Error, limits: Limits) -> Error:
    """The error as other rows repeat it; its path says where the whole one is."""
    message = clipped(error["message"], limits.max_error_excerpt)
    if message is error["message"] and "traceback" not in error:
        return error
    kept = {name: value for name, value in error.items() if name != "traceback"}
    return {**kept, "message": message}


def with_cause(error: Error, earlier: Error, limits: Limits) -> Error:
    """The error of a catch or always block, with the earlier error that it handled."""
    cause = excerpt({name: v for name, v in earlier.items() if name != "cause"}, limits)
    first = f"{cause['path']}: {cause['type']}: {cause['message']}"
    message = f"{error['message']} (while handling {first})"
    return limited({**error, "message": message, "cause": cause}, limits)


def skipped_because(cause: Step) -> Error:
    """The error of a skipped step: it names the step that failed first."""
    assert cause.error is not None
    if cause.state == StepState.SKIPPED:
        return cause.error
    message = f"skipped: {cause.path} failed: {cause.error['message']}"
    return {"type": "Skipped", "message": message, "path": cause.error["path"]}


#: Among the failed children of a row the one of the lowest rank decides how the row ends.
CANCELLED_RANK = -1
_RANKS = {StepState.CANCELLED: CANCELLED_RANK, StepState.ERROR: 0, StepState.SKIPPED: 1}
_BY_RANK = {CANCELLED_RANK: Signal.CANCEL, 0: Signal.FAIL, 1: Signal.SKIP}
SKIPPED_BY_HAND = "SkippedByHand"


def is_skipped_by_hand(row: Step) -> bool:
    """Whether somebody has skipped a row, or a step that it needs: the run goes on without it."""
    return row.state == StepState.SKIPPED and (row.error or {}).get("type") == SKIPPED_BY_HAND


#: Failed items that the error of a foreach lists.
MAX_LISTED = 10


def note_failure(parent: Step, child: Step, limits: Limits) -> None:
    """Keep the first failure in program order: cancellations, then errors, then skips.

    Invariant: the same failures, in any order in time, leave the same error.
    """
    assert child.error is not None
    rank = [_RANKS[child.state], child.index]
    before = parent.failure
    count = 1 + (before["count"] if before else 0)
    error = excerpt(child.error, limits)
    first = before if before and before["rank"] <= rank else {"rank": rank, "error": error}
    parent.failure = {**first, "count": count}
    if parent.object_type == ObjectType.FAN:
        items = [*(before["items"] if before else ()), [rank, item_error(child, limits)]]
        parent.failure["items"] = sorted(items, key=lambda entry: entry[0])[:MAX_LISTED]


def item_error(item: Step, limits: Limits) -> Error:
    """The entry of a failed item in the error of its foreach."""
    assert item.error is not None
    error = excerpt(item.error, limits)
    return {"index": item.index, **{n: error[n] for n in ("type", "message", "path")}}


def await_children(_: object, row: Step) -> Signal | None:
    """Advance when the last child has ended; fail with the error of the first failed one."""
    if row.remaining:
        return None
    if row.failure is None:
        return Signal.ADVANCE
    row.error = row.failure["error"]
    return _BY_RANK[row.failure["rank"][0]]

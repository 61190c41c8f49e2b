"""Cancellation of a run: every row ends as cancelled, except that always blocks run first.

The steps that wait at their event are ended, a page at a time: a run may have a hundred thousand.
The rows above and behind them end by propagation, as they do after a failure; but a cancelled run
begins nothing, and no catch takes a cancellation. Always blocks have a time limit, after which
they are cancelled too.

The cancellation is stored as the error of the root step from the beginning.
"""

from __future__ import annotations

from typing import Any

from flowengine.evaluator import deadlines, working_set
from flowengine.evaluator.failures import CANCELLED_RANK, limited
from flowengine.evaluator.records import (
    ChildCancellation,
    Error,
    FollowUp,
    Step,
    TaskHold,
    TimerDefinition,
    id_within,
)
from flowengine.evaluator.states import ObjectType, RunState, Signal, StepState, next_run_state
from flowengine.evaluator.triggers import Action, CancelChildren
from flowengine.evaluator.working_set import WorkingSet

TYPE = "Cancelled"  #: of the error of a cancelled run or step
TIMER = "cleanup"  #: the kind of the timer that limits always blocks
OPEN_STEPS, CHILDREN = "CancelSteps", "CancelChildren"  #: kinds of follow-ups
_ALWAYS = "[always]"
_S = StepState
#: States whose handler begins something.
_BEGINNING = frozenset(
    {
        *(_S.CREATED, _S.FACET_INIT_BEGIN, _S.FACET_SCRIPTS_BEGIN, _S.MIXIN_BLOCKS_BEGIN),
        *(_S.EVENT_TRANSMIT, _S.BLOCKS_BEGIN, _S.CATCH_BEGIN, _S.EXECUTION_BEGIN),
        *(_S.ALWAYS_BEGIN, _S.SUSPENDED),
    }
)


def cancel(work: WorkingSet, action: Action) -> None:
    """Begin the cancellation of a run: its steps are ended by the follow-ups."""
    because = f": {action.reason}" if action.reason else ""
    details = {"actor": action.actor, "reason": action.reason, "at": action.at}
    error = {"type": TYPE, "message": f"cancelled by {action.actor}{because}", **details}
    if work.run.state == RunState.QUEUED:  # it has no rows yet
        work.run.state = next_run_state(work.run.id, work.run.state, Signal.CANCEL)
        name = work.run.workflow.rpartition(".")[2]
        work.run.error = limited({**error, "path": name}, work.limits)
        return
    _begin(work, error)


def expire_run(work: WorkingSet) -> None:
    """Begin to end a run whose deadline has passed, if it is not being cancelled."""
    if work.run.state == RunState.CANCELLING:
        return
    details = {"actor": "server:flowengine", "reason": deadlines.REASON, "at": work.now}
    _begin(work, {"type": deadlines.TYPE, "message": deadlines.REASON, **details})


def _begin(work: WorkingSet, error: Error) -> None:
    run, root = work.run, work.get(work.root_key)
    if run.state == RunState.HELD:
        work.changes.task_hold = TaskHold.RELEASE  # always blocks that run already go on
    run.state = next_run_state(run.id, run.state, Signal.CANCEL)
    root.error = limited({**error, "path": root.path}, work.limits)
    work.touch(root)
    if any(statement.always for statement in work.plan.statements.values()):
        due = work.now + round(work.limits.cleanup_timeout * 1000)
        timer = TimerDefinition(timer_of(root), run.id, root.id, TIMER, due)
        work.changes.created_timers.append(timer)
    _follow_up(work)


def time_is_over(work: WorkingSet) -> None:
    """Cancel the always blocks too: they have had their time."""
    root = work.get(work.root_key)
    if work.run.state == RunState.CANCELLING and root.error is not None:
        root.error = {**root.error, "is_late": True}
        work.touch(root)
        _follow_up(work)


def _follow_up(work: WorkingSet) -> None:
    first = {"after": ""}
    work.changes.follow_ups += [FollowUp(OPEN_STEPS, first), FollowUp(CHILDREN, first)]


def open_steps(work: WorkingSet, after: str) -> list[Step]:
    """Return the next steps to be ended at their event; the rest is left to a follow-up."""
    keys = work.at_event(after)
    if len(keys) == working_set.PAGE:
        work.changes.follow_ups.append(FollowUp(OPEN_STEPS, {"after": keys[-1]}))
    found = [work.get(key) for key in keys]
    return [s for s in found if s.state == _S.EVENT_TRANSMIT and is_cancelled(work, s)]


def cancel_children_below(
    work: WorkingSet, step: Step, why: str, actor: str = "server:flowengine"
) -> None:
    """Cancel, in a later transaction, the child runs of a step and of the steps below it."""
    reason = f"step {step.path} of run {work.run.id} has ended: {why}"
    about = {"actor": actor, "reason": reason, "at": work.now}
    work.changes.follow_ups.append(FollowUp(CHILDREN, {"after": "", "below": step.path, **about}))


def cancel_superseded_children(work: WorkingSet, action: Action) -> None:
    """Cancel, in a later transaction, the child runs of steps that a retry has superseded."""
    because = f": {action.reason}" if action.reason else ""
    reason = f"the step of run {work.run.id} that started it was retried{because}"
    about = {"actor": action.actor, "reason": reason, "at": action.at}
    work.changes.follow_ups.append(FollowUp(CHILDREN, {"after": "", "superseded": True, **about}))


def of_children(work: WorkingSet, given: CancelChildren) -> ChildCancellation | None:
    """Return the cancellation of the child runs behind an id; None: the run was retried."""
    if given.is_of_steps:
        return ChildCancellation(
            given.after,
            given.actor,
            given.reason,
            given.at,
            spares_always=bool(given.below),
            below=given.below,
            superseded=given.superseded,
        )
    if work.get(work.root_key).error is None:
        return None
    about = _cancellation(work)
    reason = f"run {work.run.id} was cancelled"
    if about["reason"]:
        reason += f": {about['reason']}"
    is_closing = work.run.state == RunState.CANCELLING and "is_late" not in about
    return ChildCancellation(given.after, about["actor"], reason, about["at"], is_closing)


def is_cancelled(work: WorkingSet, row: Step) -> bool:
    """Whether a row is to be cancelled: not if it is part of an always block that has time left."""
    if work.run.state == RunState.CANCELLING and (
        not is_in_always(row) or "is_late" in _cancellation(work)
    ):
        return True
    return deadlines.expired_above(work, row) is not None


def is_in_always(row: Step) -> bool:
    return row.state in _S.CLOSING or is_path_in_always(row.path)


def is_path_in_always(path: str) -> bool:
    return _ALWAYS in path


def stop(work: WorkingSet, row: Step) -> Signal | None:
    """Return the signal that a row gets instead of its handler's; None: the handler decides."""
    if row.object_type == ObjectType.FAN and row.next_index < row.item_count:
        if row.state == _S.EXECUTION_CONTINUE:
            _forget_items(work, row)
        return None
    if row.object_type == ObjectType.WORKFLOW and not row.remaining:
        return Signal.CANCEL  # the run ends as cancelled, whatever of it has completed
    if row.state not in _BEGINNING:
        return None
    if row.state == _S.SUSPENDED and row.remaining:
        return None  # its calls are being cancelled
    plan = work.step_plan(row) if row.state == _S.BLOCKS_BEGIN else None
    if plan is not None and not plan.body:
        return None  # its result is recorded
    row.error = error_of(work, row)
    return Signal.CANCEL


def _forget_items(work: WorkingSet, fan: Step) -> None:
    """Let a foreach end with the items that have begun."""
    fan.remaining -= fan.item_count - fan.next_index
    fan.item_count = fan.next_index
    before = fan.failure or {"count": 0, "items": []}
    rank = [CANCELLED_RANK, fan.next_index]
    fan.failure = {**before, "rank": rank, "error": error_of(work, fan)}


def error_of(work: WorkingSet, row: Step) -> Error:
    if expired := deadlines.expired_above(work, row):
        assert expired.error is not None
        is_late = expired.error["type"] == deadlines.TYPE
        reason = f"the deadline of {expired.path} has passed" if is_late else "its function failed"
        message = f"cancelled: {reason}"
    else:
        message = _cancellation(work)["message"]
    return limited({"type": TYPE, "message": message, "path": row.path}, work.limits)


def end_run(work: WorkingSet, root: Step) -> None:
    """End a cancelled run, with who and why; an always block that failed is named."""
    run = work.run
    is_late = _cancellation(work)["type"] == deadlines.TYPE
    run.state = next_run_state(run.id, run.state, Signal.FAIL if is_late else Signal.CANCEL)
    failure = root.failure if root.failure and root.failure["rank"][0] == 0 else None
    error = {name: v for name, v in _cancellation(work).items() if name != "is_late"}
    if failure is not None:
        first = failure["error"]
        what = f"{first['path']}: {first['type']}: {first['message']}"
        error["message"] = f"{error['message']} (while it was cancelled, {what})"
    run.error = root.error = limited(error, work.limits)
    work.changes.remove_timer(timer_of(root))


def timer_of(root: Step) -> str:
    return id_within(root.id, TIMER)


def _cancellation(work: WorkingSet) -> dict[str, Any]:
    error = work.get(work.root_key).error
    assert error is not None, f"run {work.run.id} is cancelled without a reason"
    return error

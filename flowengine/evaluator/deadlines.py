"""Deadlines: a step, with everything below it, or a run that must end by a time.

A step at its event fails when its deadline has passed, whatever its tries do. A step with a body is
marked as expired first: the steps below it are cancelled, a page at a time, nothing new begins
there, and no catch below takes the cancellation. When the last row below has ended the step fails
with DeadlineExceeded, which its own catch may take. Always blocks below it run to their end.

The deadline of a run is a cancellation whose end is FAILED.
"""

from __future__ import annotations

from flowengine.evaluator.failures import limited
from flowengine.evaluator.records import Error, FollowUp, Step, TimerDefinition, id_within
from flowengine.evaluator.states import ObjectType, StepState
from flowengine.evaluator.working_set import WorkingSet
from flowengine.program.plan import StatementPlan

TYPE, REASON = "DeadlineExceeded", "its deadline has passed"
TIMER, RUN_TIMER = "deadline", "run_deadline"  #: kinds of timers
_EXPIRED = "is_expired"  # marks the error of a step whose rows below are being cancelled
_ALWAYS = "[always]"


def set_timer(work: WorkingSet, step: Step, seconds: float) -> None:
    """Set the deadline of a step that begins."""
    due = work.now + round(seconds * 1000)
    timer = TimerDefinition(timer_of(step), step.run_id, step.id, TIMER, due)
    work.changes.created_timers.append(timer)


def set_run_timer(work: WorkingSet, root: Step) -> None:
    if work.run.deadline is not None:
        timer = TimerDefinition(
            id_within(root.id, RUN_TIMER), root.run_id, root.id, RUN_TIMER, work.run.deadline
        )
        work.changes.created_timers.append(timer)


def end_run_timer(work: WorkingSet, root: Step) -> None:
    if work.run.deadline is not None:
        work.changes.remove_timer(id_within(root.id, RUN_TIMER))


def end_timer(work: WorkingSet, step: Step) -> None:
    """Remove the deadline of a step that has ended."""
    plan = work.step_plan(step)
    if isinstance(plan, StatementPlan) and plan.deadline is not None:
        work.changes.remove_timer(timer_of(step))


def timer_of(step: Step) -> str:
    return id_within(step.id, TIMER)


def is_open(step: Step) -> bool:
    """Whether a deadline concerns the step: in its body or at its event, not in a handler."""
    return not step.is_final and step.state not in StepState.HANDLING and not is_expired(step)


def error_of(work: WorkingSet, step: Step) -> Error:
    plan = work.statement(step)
    message = f"it has not ended within {plan.deadline:g} s"
    return limited({"type": TYPE, "message": message, "path": step.path}, work.limits)


def expire(work: WorkingSet, step: Step, follow_up: str) -> None:
    """Mark a step with a body: the follow-ups cancel the rows below it."""
    step.error = {**error_of(work, step), _EXPIRED: True}
    work.touch(step)
    work.changes.follow_ups.append(FollowUp(follow_up, {"after": ""}))
    if not step.remaining:
        work.queue.append(step)


def end_below(work: WorkingSet, step: Step, error: Error, follow_up: str) -> None:
    """Let a step fail when the rows below it, which the follow-ups cancel, have ended."""
    step.error = {**limited(error, work.limits), _EXPIRED: True}
    work.touch(step)
    work.changes.follow_ups.append(FollowUp(follow_up, {"after": ""}))


def is_expired(row: Step) -> bool:
    return row.error is not None and _EXPIRED in row.error


def settle(row: Step) -> None:
    """Give an expired step, below which everything has ended, its final error."""
    assert row.error is not None
    row.error = {name: value for name, value in row.error.items() if name != _EXPIRED}
    row.failure = None


def expired_above(work: WorkingSet, row: Step) -> Step | None:
    """Return the expired step that a row is below; always blocks have their time."""
    if row.object_type == ObjectType.FUNCTION_CALL and is_expired(function := work.parent(row)):
        return function
    if not work.plan.has_deadlines or row.state in StepState.CLOSING:
        return None
    above = row
    while above.parent is not None:
        above = work.parent(above)
        if is_expired(above):
            return None if _ALWAYS in row.path[len(above.path) :] else above
    return None

"""Catch and always blocks of a step.

A step that fails tries its catches, one after the other: the facet's own, then that of the
statement. A catch that completes gives the step its results; one that fails leaves both errors.
Then the always block runs, which changes the outcome only by failing.
"""

from __future__ import annotations

from flowengine.evaluator.cancellation import is_cancelled
from flowengine.evaluator.failures import CANCELLED_RANK, with_cause
from flowengine.evaluator.records import Step
from flowengine.evaluator.states import ObjectType, Signal, StepState
from flowengine.evaluator.steps import create_blocks
from flowengine.evaluator.working_set import WorkingSet


def redirect(work: WorkingSet, row: Step, signal: Signal) -> Signal:
    """Return the signal for a row that ends unsuccessfully.

    To a catch, to the always block, or unchanged. No catch takes a cancellation.
    """
    if row.object_type not in ObjectType.HANDLING or row.state in StepState.CLOSING:
        return signal
    plan = work.step_plan(row)
    if signal is Signal.FAIL and row.next_index < len(plan.catches):
        return Signal.CANCEL if is_cancelled(work, row) else Signal.CATCH
    if not plan.always or row.state == StepState.CREATED:
        return signal
    if signal in _MARKS:
        assert row.error is not None
        row.error = {**row.error, _MARKS[signal]: True}  # read again after the always block
    return Signal.CLOSE


_MARKS = {Signal.SKIP: "skipped", Signal.CANCEL: "cancelled"}


def begin_catch(work: WorkingSet, step: Step) -> Signal:
    step.failure = None
    step.next_index += 1
    create_blocks(work, step, [work.step_plan(step).catches[step.next_index - 1]])
    return Signal.ADVANCE


def await_catch(work: WorkingSet, step: Step) -> Signal | None:
    """Advance if the catch completed, or fail with both errors."""
    if step.remaining:
        return None
    assert step.error is not None
    failure, step.failure = step.failure, None
    if failure is None:
        step.failure, step.error = {"caught": step.error}, None
        return Signal.ADVANCE
    if failure["rank"][0] == CANCELLED_RANK:
        step.error = failure["error"]
        return Signal.CANCEL
    if failure["rank"][0] == 0:  # otherwise no case was for this error
        step.error = with_cause(failure["error"], step.error, work.limits)
    return Signal.FAIL


def begin_always(work: WorkingSet, step: Step) -> Signal:
    """Create the blocks that run after success and failure."""
    step.failure = None
    create_blocks(work, step, work.step_plan(step).always)
    return Signal.ADVANCE


def await_always(work: WorkingSet, step: Step) -> Signal | None:
    """End as the step would have ended, unless the always block failed."""
    if step.remaining:
        return None
    before, was_skipped, was_cancelled = step.error, False, False
    if before is not None:
        if step.failure is not None:
            step.failure = {**step.failure, "before": before}  # for a retry of the always block
        was_skipped, was_cancelled = (before.get(mark, False) for mark in _MARKS.values())
        marks = _MARKS.values()
        step.error = {name: value for name, value in before.items() if name not in marks}
    if step.failure is not None and step.failure["rank"][0] == CANCELLED_RANK:
        step.error = step.error or step.failure["error"]
        return Signal.CANCEL  # its time was over
    if step.failure is not None and step.failure["rank"][0] == 0:
        error = step.failure["error"]
        earlier = None if was_skipped else step.error
        step.error = error if earlier is None else with_cause(error, earlier, work.limits)
        return Signal.FAIL
    if step.failure is not None and step.error is None:
        step.error, was_skipped = step.failure["error"], True
    if step.error is None:
        return Signal.ADVANCE
    if was_cancelled:
        return Signal.CANCEL
    return Signal.SKIP if was_skipped else Signal.FAIL

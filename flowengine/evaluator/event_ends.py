"""The end of a step's event: with a result, an error or a cancellation.

A durable function at its event may have open calls. If it does not end by its own code, these are
cancelled first, and the function ends with the last of them.
"""

from __future__ import annotations

from flowengine.evaluator import cancellation, catch, deadlines, events, function_calls
from flowengine.evaluator.failures import limited
from flowengine.evaluator.propagation import ended
from flowengine.evaluator.records import Error, Step
from flowengine.evaluator.states import Signal, next_state
from flowengine.evaluator.triggers import Failed
from flowengine.evaluator.working_set import WorkingSet
from flowengine.program.standard import WAITS

_FINAL = events.GiveUp("")


def answer(work: WorkingSet, step: Step, result: dict[str, object]) -> None:
    """End an event with a result."""
    step.returns = result
    _leave_event(work, step, Signal.CONTINUE)
    work.queue.append(step)


def after_failed_try(
    work: WorkingSet, step: Step, failed: Failed, try_number: int, losses: int
) -> None:
    """Open the next try of a step, or fail it."""
    options = work.statement(step).options
    decision: events.Decision = _FINAL
    if failed.retry:
        counts = (try_number, losses, work.now)
        decision = events.after_failure(options, *counts, failed.error, step.id)
    try_again_or_fail(work, step, decision, failed.error)


def try_again_or_fail(
    work: WorkingSet, step: Step, decision: events.Decision, error: Error
) -> None:
    """Open the next try that was decided, if the run has room for it; else fail the step."""
    if isinstance(decision, events.TryAgain) and not cancellation.is_cancelled(work, step):
        if work.run.step_count < work.limits.max_run_steps:
            work.run.step_count += 1
            if step.activation and step.activation != decision.try_number:
                step.activation = decision.try_number
                work.touch(step)
            events.create_task(work, step, decision)
            return
        decision = events.GiveUp("no further try: the run has as many steps as max_run_steps")
    if isinstance(decision, events.GiveUp) and decision.reason:
        error = {**error, "message": f"{error['message']} ({decision.reason})"}
    fail(work, step, error)


def fail(work: WorkingSet, step: Step, error: Error, path: str = "") -> None:
    """End an event with an error; `path` is that of the step that failed first, if another did."""
    if cancellation.is_cancelled(work, step):
        cancel(work, step)
        return
    error = limited({**error, "path": path or step.path}, work.limits)
    if step.remaining:
        _stop_activation(work, step)
        deadlines.end_below(work, step, error, cancellation.OPEN_STEPS)
        cancellation.cancel_children_below(work, step, "it has failed")
        return
    step.error = error
    _end_unsuccessfully(work, step, Signal.FAIL)


def cancel(work: WorkingSet, step: Step) -> None:
    """End an event because its run, or a step above it, is being cancelled."""
    if step.remaining:
        _stop_activation(work, step)
        return  # its calls are cancelled too, and the last of them ends it
    step.error = cancellation.error_of(work, step)
    work.changes.canceled_steps.append(step.id)
    if step.facet_name in WAITS:
        work.changes.ended_waits.append(step.id)
    _end_unsuccessfully(work, step, Signal.CANCEL)


def _stop_activation(work: WorkingSet, function: Step) -> None:
    work.changes.canceled_steps.append(function.id)
    function_calls.suspend(work, function)


def _end_unsuccessfully(work: WorkingSet, step: Step, signal: Signal) -> None:
    _leave_event(work, step, catch.redirect(work, step, signal))
    if step.is_final:
        ended(work, step)
    else:
        work.queue.append(step)


def _leave_event(work: WorkingSet, step: Step, signal: Signal) -> None:
    work.touch(step)
    work.run.open_steps -= 1
    step.state = next_state(step.object_type, step.path, step.state, signal)

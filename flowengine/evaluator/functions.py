"""Durable functions: what follows from the end of an activation.

The tries of a function's event are activations: each runs its code until everything in it waits,
and reports the new calls, the cancelled ones, or the end. The calls become rows below the function
(`function_calls`). Between two activations the function is suspended: a row without a task.

An activation that dies is lost like any try. Losses have a limit; they are counted anew when the
function has recorded a call since the lost activation was opened.
"""

from __future__ import annotations

from flowengine.evaluator import event_ends, events, function_calls
from flowengine.evaluator.records import Step, TaskDefinition
from flowengine.evaluator.states import Signal, StepState, TaskState, next_state
from flowengine.evaluator.triggers import ActivationEnded, Failed, Lost, RanAhead, Succeeded
from flowengine.evaluator.working_set import WorkingSet

#: The alarm of a run whose code does not fit the record begins so. The next report clears it.
DIVERGED = "a durable function waits for code that fits its record:"


def activation_ended(work: WorkingSet, function: Step, report: ActivationEnded) -> None:
    """Make the calls of an activation; end the function, or let it wait for them."""
    work.touch(function)
    if work.run.alarm is not None and work.run.alarm.startswith(DIVERGED):
        work.run.alarm = None
    work.run.step_count += report.in_place
    dropped = set(report.cancelled)
    for place, call in enumerate(report.calls):
        step = function_calls.create_call(work, function, call)
        if call.number in dropped:
            function_calls.drop_call(work, function, call.number)
        elif place == 0 and report.failed is not None:
            _tried_in_place(work, step, report.failed)
        else:
            work.queue.append(step)
    for number in sorted(dropped - {call.number for call in report.calls}):
        function_calls.drop_call(work, function, number)
    function.heard = report.heard
    match report.ended:
        case Succeeded(result):
            event_ends.answer(work, function, result)
        case Failed(error):
            # The error of a call keeps the path of the call.
            event_ends.fail(work, function, error, str(error.get("path") or ""))
        case None:
            function_calls.suspend(work, function)
            if report.is_partial or function.item_count > report.seen:
                function_calls.wake(work, function)


def ran_ahead(work: WorkingSet, ahead: RanAhead) -> None:
    """Take in the report of an activation that this evaluation has opened.

    It fits if the function was told of exactly the ends that it has. Otherwise the activation stays
    open, and another process runs it.
    """
    function, report = work.find(ahead.step_key), ahead.report
    if function is None or function.id != ahead.step_id:
        return
    opened = [task for task in work.changes.created_tasks if task.step_id == function.id]
    if (
        len(opened) != 1
        or opened[0].state != TaskState.PENDING
        or function.state != StepState.EVENT_TRANSMIT
        or function.activation != ahead.number
        or function.item_count != report.seen
    ):
        return
    work.changes.created_tasks.remove(opened[0])
    work.changes.ran_ahead.append(function.key)
    activation_ended(work, function, report)


def _tried_in_place(work: WorkingSet, call: Step, failed: Failed) -> None:
    """Decide about a call whose first try was made by the activation, and failed."""
    call.state = next_state(call.object_type, call.path, call.state, Signal.ADVANCE)
    assert call.state == StepState.EVENT_TRANSMIT
    work.run.open_steps += 1
    events.ask(work, call)
    event_ends.after_failed_try(work, call, failed, try_number=1, losses=0)


def after_loss(work: WorkingSet, function: Step, task: TaskDefinition, lost: Lost) -> None:
    """Open the activation again whose worker died, or fail the function."""
    options = work.statement(function).options
    decision = events.after_loss(options, task.try_number, task.losses, work.now)
    if task.losses and options.max_losses:
        last = work.last_call(function)
        if last is not None and last >= task.created:
            decision = events.TryAgain(task.try_number + 1, 1, work.now)
    error = {"type": "WorkerLost", "message": lost.reason}
    event_ends.try_again_or_fail(work, function, decision, error)

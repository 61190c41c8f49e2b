"""The rows of the calls of a durable function: their creation, and the first effect of their end.

A call stands below the step of its function. Its end gets the next number among the ends of the
function's calls: ends are told in that order. The end of a call of a suspended function opens the
next activation. While an activation is under way nothing is opened: its report says how many ends
it was told of, and the function is due again if there are more.
"""

from __future__ import annotations

from flowengine.evaluator import cancellation, deadlines
from flowengine.evaluator.call_statements import CallPlan, call_id, call_key, call_path, written
from flowengine.evaluator.records import Step
from flowengine.evaluator.states import ObjectType, Signal, StepState, next_state
from flowengine.evaluator.working_set import WorkingSet
from flowengine.program.function_calls import CallKind, FunctionCall
from flowengine.program.standard import WAITS


def call_row(function: Step, call: FunctionCall, now: int) -> Step:
    """Return the row of a call below the step that makes it."""
    return Step(
        id=call_id(function, call.number),
        run_id=function.run_id,
        key=call_key(function.path, call.number),
        path=call_path(function.path, call),
        object_type=ObjectType.FUNCTION_CALL,
        address=written(call),
        parent=function.key,
        index=call.number,
        generation=function.generation,
        facet_name=call.facet,
        params=call.arguments,
        created=now,
        updated=now,
        digest=call.digest,
        heard=call.heard,
    )


def create_call(work: WorkingSet, function: Step, call: FunctionCall) -> Step:
    """Create the row of a call; the caller lets it begin."""
    step = call_row(function, call, work.now)
    work.add(step)
    function.remaining += 1
    if call.deadline is not None:
        deadlines.set_timer(work, step, call.deadline)
    return step


def ended(work: WorkingSet, call: Step) -> None:
    """Number the end of a call, and let its function hear it if it is suspended."""
    _end_timers(work, call)
    function = work.parent(call)
    if function.is_final:
        return
    function.remaining -= 1
    function.item_count += 1
    call.item_count = function.item_count
    work.touch(function)
    if function.state == StepState.SUSPENDED:
        wake(work, function)


def wake(work: WorkingSet, function: Step) -> None:
    """Queue a suspended function, once."""
    if function.key not in work.woken:
        work.woken.add(function.key)
        work.queue.append(function)


def resume(work: WorkingSet, function: Step) -> Signal | None:
    """Open the next activation, unless the function is ending with its calls."""
    work.woken.discard(function.key)
    if function.remaining and cancellation.is_cancelled(work, function):
        return None
    return Signal.ADVANCE


def suspend(work: WorkingSet, function: Step) -> None:
    """Let a function wait for its calls, without a task."""
    work.run.open_steps -= 1
    function.state = next_state(function.object_type, function.path, function.state, Signal.SUSPEND)
    work.touch(function)


def drop_call(work: WorkingSet, function: Step, number: int) -> None:
    """End a call that its function has cancelled: it is fenced, and its end is never heard."""
    call = work.get(call_key(function.path, number))
    if call.is_final:
        return
    if call.state == StepState.EVENT_TRANSMIT:
        work.run.open_steps -= 1
        work.changes.canceled_steps.append(call.id)
        if call.facet_name in WAITS:
            work.changes.ended_waits.append(call.id)
        else:
            cancellation.cancel_children_below(work, call, "its function has cancelled it")
    message = f"cancelled by {function.path}"
    call.error = {"type": cancellation.TYPE, "message": message, "path": call.path}
    call.state = next_state(call.object_type, call.path, call.state, Signal.CANCEL)
    work.touch(call)
    function.remaining -= 1
    _end_timers(work, call)


def _end_timers(work: WorkingSet, call: Step) -> None:
    if work.statement(call).deadline is not None:
        work.changes.remove_timer(deadlines.timer_of(call))


def is_run(work: WorkingSet, call: Step) -> bool:
    """Whether a call is a run of its own."""
    plan = work.statement(call)
    return isinstance(plan, CallPlan) and plan.call_kind is CallKind.RUN

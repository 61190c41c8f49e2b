"""Advance a run to its fixed point.

An input advances the rows that it concerns as far as they can go; the rows that wait for these
come next, until the queue is empty. The result does not depend on the order of inputs, and
applying the same input twice is idempotent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_never

from flowengine.errors import FlowengineError
from flowengine.evaluator import (
    actions,
    blocks,
    cancellation,
    catch,
    deadlines,
    events,
    pre_steps,
    steps,
    waits,
    yields,
)
from flowengine.evaluator.failures import (
    StepFailed,
    StepSkipped,
    await_children,
    excerpt,
    limited,
    problem,
)
from flowengine.evaluator.propagation import ended
from flowengine.evaluator.read_sets import prefetch, read_by_ends
from flowengine.evaluator.records import (
    Error,
    IterationChanges,
    Refusal,
    RunView,
    Step,
    row_key,
)
from flowengine.evaluator.states import (
    ObjectType,
    RunState,
    Signal,
    StepState,
    next_run_state,
    next_state,
)
from flowengine.evaluator.triggers import (
    Action,
    Answer,
    CancelChildren,
    CancelSteps,
    Delegated,
    Expand,
    Failed,
    Lost,
    Report,
    Started,
    StepContinue,
    StepFail,
    Succeeded,
    TimerFired,
    Trigger,
)
from flowengine.evaluator.working_set import Missing, Snapshot, WorkingSet
from flowengine.program.addresses import RowKind
from flowengine.program.plan import Plan
from flowengine.program.standard import WAIT_FOR, WAITS

Handler = Callable[[WorkingSet, Step], Signal | None]
_NOTHING_OUTSTANDING = "the run waits, but nothing is outstanding"

#: A state without a handler is passed through.
HANDLERS: dict[str, Handler] = {
    StepState.FACET_INIT_BEGIN: steps.initialize,
    StepState.FACET_SCRIPTS_BEGIN: pre_steps.begin_script,
    StepState.FACET_SCRIPTS_END: pre_steps.capture_script,
    StepState.MIXIN_BLOCKS_BEGIN: pre_steps.begin_mixins,
    StepState.MIXIN_BLOCKS_CONTINUE: await_children,
    StepState.MIXIN_CAPTURE_BEGIN: pre_steps.capture_mixins,
    StepState.EVENT_TRANSMIT: events.transmit,
    StepState.BLOCKS_BEGIN: steps.begin_blocks,
    StepState.BLOCKS_CONTINUE: await_children,
    StepState.CAPTURE_BEGIN: yields.capture,
    StepState.CATCH_BEGIN: catch.begin_catch,
    StepState.CATCH_CONTINUE: catch.await_catch,
    StepState.ALWAYS_BEGIN: catch.begin_always,
    StepState.ALWAYS_CONTINUE: catch.await_always,
    StepState.EXECUTION_BEGIN: blocks.begin,
    StepState.EXECUTION_CONTINUE: blocks.go_on,
    StepState.EXECUTION_END: blocks.yield_values,
}


def evaluate(
    plan: Plan,
    run: RunView,
    snapshot: Snapshot,
    triggers: Sequence[Trigger],
    now: int,
    *,
    prefetched: bool = False,
) -> IterationChanges | Missing:
    """Decide what follows from the inputs, or return the rows that are missing to decide it.

    The run is changed in place; on `Missing` the caller evaluates again with a fresh one. Pass
    `prefetched=True` after `lacking()` has returned nothing for these inputs.
    """
    work = WorkingSet(plan, run, snapshot, now)
    if not prefetched:
        try:
            prefetch(work, triggers)
        except Missing as missing:
            return missing
    if lacking := _apply_all(work, triggers):
        return lacking
    is_open = run.state not in RunState.FINAL
    if is_open and run.open_steps == 0 and not work.changes.follow_ups:
        # Invariant: an open run has an open event or a follow-up. Broken: raise an alarm.
        run.alarm = _NOTHING_OUTSTANDING
    elif run.alarm == _NOTHING_OUTSTANDING:
        run.alarm = None  # a follow-up of an earlier commit was outstanding
    return work.changes


def lacking(
    plan: Plan, run: RunView, snapshot: Snapshot, triggers: Sequence[Trigger], now: int
) -> Missing:
    """Return the rows of the read sets of the inputs that are not loaded."""
    try:
        prefetch(WorkingSet(plan, run, snapshot, now), triggers)
    except Missing as missing:
        return missing
    return Missing(set(), set())


def _apply_all(work: WorkingSet, triggers: Sequence[Trigger]) -> Missing:
    """Apply one input after the other, or return the rows that are missing.

    Once a row is missing nothing more is decided. Later inputs are applied only to collect
    their missing rows too: a thousand reports must not make a thousand round trips.
    """
    missing = Missing(set(), set())
    for trigger in triggers:
        try:
            _apply(work, trigger)
            _advance_queue(work)
        except Missing as more:
            missing.add(more)
            work.queue.clear()
            work.skipped.clear()
        except Exception:
            if missing:
                return missing  # a row was changed half way: evaluate again with all rows
            raise
    return missing


def _advance_queue(work: WorkingSet) -> None:
    # Without recursion: ten thousand steps of a chain may end in one evaluation.
    while work.queue or work.skipped:
        is_skipped = bool(work.skipped)
        row = work.skipped.popleft() if is_skipped else work.queue.popleft()
        if not is_skipped and work.is_full and work.postpone(row):
            continue
        try:
            if is_skipped:
                ended(work, row)
            elif not row.is_final:
                _advance(work, row)
        except Missing as missing:
            missing.steps |= {key for key in read_by_ends(work, [row]) if not work.knows(key)}
            raise


def _advance(work: WorkingSet, row: Step) -> None:
    """Advance one row through its states until it waits or ends."""
    work.touch(row)
    is_cancelling = work.run.state == RunState.CANCELLING or work.plan.has_deadlines
    while not row.is_final:
        if deadlines.is_expired(row):
            if row.remaining:
                return  # the rows below it are being cancelled
            deadlines.settle(row)
            row.state = _onward(row, catch.redirect(work, row, Signal.FAIL))
            continue
        handler = HANDLERS.get(row.state)
        stop = None
        if is_cancelling and cancellation.is_cancelled(work, row):
            stop = cancellation.stop(work, row)
        try:
            signal = stop or (handler(work, row) if handler else Signal.ADVANCE)
        except (StepFailed, StepSkipped) as stop:
            signal = Signal.FAIL if isinstance(stop, StepFailed) else Signal.SKIP
            shorten = limited if isinstance(stop, StepFailed) else excerpt
            row.error = shorten(stop.error, work.limits)
        except (Missing, FlowengineError, AssertionError, MemoryError):
            raise
        except Exception as error:
            # Values of a program made it: raised, it would be raised again by every report, and
            # the run would never end.
            signal = Signal.FAIL
            found = problem("EvaluationError", f"{type(error).__name__}: {error}", row.path)
            row.error = limited(found, work.limits)
        if signal is None:
            return
        if signal in _UNSUCCESSFUL:
            signal = catch.redirect(work, row, signal)
        row.state = _onward(row, signal)
    ended(work, row)


def _onward(row: Step, signal: Signal) -> str:
    """Return the next state that has a handler or is final."""
    at = (row.object_type, row.state, signal)
    if at not in _ONWARD:
        state = next_state(row.object_type, row.path, row.state, signal)
        while state not in HANDLERS and state not in StepState.FINAL:
            state = next_state(row.object_type, row.path, state, Signal.ADVANCE)
        _ONWARD[at] = state
    return _ONWARD[at]


_ONWARD: dict[tuple[str, str, Signal], str] = {}
_UNSUCCESSFUL = (Signal.FAIL, Signal.SKIP, Signal.CANCEL)


# --- inputs ---


def _apply(work: WorkingSet, trigger: Trigger) -> None:
    if work.run.state in RunState.FINAL and not isinstance(trigger, Action | CancelChildren):
        if isinstance(trigger, Answer):
            work.changes.refusals.append(Refusal(trigger.id, "the run has ended"))
        return  # it came too late, and is only consumed
    if work.run.state == RunState.QUEUED and not isinstance(trigger, Action | Started):
        if isinstance(trigger, Answer):
            work.changes.refusals.append(Refusal(trigger.id, "the run is QUEUED: it has not begun"))
        return
    match trigger:
        case Started(inputs):
            _start(work, inputs)
        case Report():
            _report(work, trigger)
        case StepContinue():
            if step := _waiting(work, trigger.step_key, trigger.step_id):
                work.changes.canceled_steps.append(step.id)
                _answer(work, step, trigger.result)
        case StepFail():
            if step := _waiting(work, trigger.step_key, trigger.step_id):
                work.changes.canceled_steps.append(step.id)
                _fail(work, step, trigger.error)
        case TimerFired(kind=cancellation.TIMER):
            cancellation.time_is_over(work)
        case TimerFired(kind=deadlines.RUN_TIMER):
            cancellation.expire_run(work)
        case TimerFired(kind=deadlines.TIMER):
            _expire(work, trigger)
        case TimerFired():
            if step := _waiting(work, trigger.step_key, trigger.step_id):
                if step.facet_name == WAIT_FOR:
                    _fail(work, step, waits.timed_out(step))
                else:
                    _answer(work, step, waits.slept(work))
        case CancelSteps(after):
            for step in cancellation.open_steps(work, after):
                _cancel(work, step)
        case CancelChildren(after):
            work.changes.child_cancellation = cancellation.of_children(work, after)
        case Answer():
            if answered := waits.answer(work, trigger):
                step, result = answered
                work.changes.ended_waits.append(step.id)
                _answer(work, step, result)
        case Action():
            actions.apply(work, trigger)
        case Expand(key):
            fan = work.find(key)
            # At its event it waits for a report: a second event would be a second try. A row that
            # waits for others has replaced the one that was to go on.
            if fan is None or fan.is_final or fan.waiting:
                return
            if fan.state != StepState.EVENT_TRANSMIT:
                work.queue.append(fan)
        case _:
            assert_never(trigger)


def _start(work: WorkingSet, inputs: dict[str, object]) -> None:
    facet = work.plan.facets[work.run.workflow]
    if work.run.state == RunState.QUEUED:
        work.run.state = next_run_state(work.run.id, work.run.state, Signal.RELEASE)
    if work.find(row_key(RowKind.STEP, facet.short_name)) is None:
        root = work.create(RowKind.STEP, facet.short_name, ObjectType.WORKFLOW, facet.name, None, 0)
        root.facet_name, root.params = facet.name, {**facet.defaults, **inputs}
        deadlines.set_run_timer(work, root)
        work.queue.append(root)


def _waiting(work: WorkingSet, key: str, step_id: str) -> Step | None:
    """Return the step if it still waits for this answer.

    A step that has advanced, or was replaced by a retry, takes no answer: so a duplicate or
    late report changes nothing.
    """
    step = work.find(key)
    if step is None or step.id != step_id or step.state != StepState.EVENT_TRANSMIT:
        return None
    return step


_FINAL = events.GiveUp("")


def _report(work: WorkingSet, report: Report) -> None:
    task = report.task
    step = _waiting(work, task.step_key, task.step_id)
    if step is None:
        return
    counts = (work.statement(step).options, task.try_number, task.losses, work.now)
    match report.outcome:
        case Delegated():
            return
        case Succeeded(result):
            _answer(work, step, result)
            return
        case Failed(error, retry):
            decision = events.after_failure(*counts, error, step.id) if retry else _FINAL
        case Lost(reason):
            decision = events.after_loss(*counts)
            error = {"type": "WorkerLost", "message": reason}
    if isinstance(decision, events.TryAgain) and not cancellation.is_cancelled(work, step):
        if work.run.step_count < work.limits.max_run_steps:
            work.run.step_count += 1
            events.create_task(work, step, decision)
            return
        decision = events.GiveUp("no further try: the run has as many steps as max_run_steps")
    if isinstance(decision, events.GiveUp) and decision.reason:
        error = {**error, "message": f"{error['message']} ({decision.reason})"}
    _fail(work, step, error)


def _answer(work: WorkingSet, step: Step, result: dict[str, object]) -> None:
    step.returns = result
    _leave_event(work, step, Signal.CONTINUE)
    work.queue.append(step)


def _fail(work: WorkingSet, step: Step, error: Error) -> None:
    if cancellation.is_cancelled(work, step):
        _cancel(work, step)
        return
    step.error = limited({**error, "path": step.path}, work.limits)
    _end_unsuccessfully(work, step, Signal.FAIL)


def _expire(work: WorkingSet, timer: TimerFired) -> None:
    step = work.find(timer.step_key)
    if step is None or step.id != timer.step_id or not deadlines.is_open(step):
        return
    if step.state != StepState.EVENT_TRANSMIT:
        deadlines.expire(work, step, cancellation.OPEN_STEPS)
        return
    work.changes.canceled_steps.append(step.id)
    if step.facet_name in WAITS:
        work.changes.ended_waits.append(step.id)
    _fail(work, step, deadlines.error_of(work, step))


def _cancel(work: WorkingSet, step: Step) -> None:
    step.error = cancellation.error_of(work, step)
    work.changes.canceled_steps.append(step.id)
    if step.facet_name in WAITS:
        work.changes.ended_waits.append(step.id)
    _end_unsuccessfully(work, step, Signal.CANCEL)


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

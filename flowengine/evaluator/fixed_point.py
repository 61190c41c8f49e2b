"""Advance a run to its fixed point.

An input advances the rows that it concerns as far as they can go; the rows that wait for these
come next, until the queue is empty. The result does not depend on the order of inputs, and
applying the same input twice is idempotent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flowengine.errors import FlowengineError
from flowengine.evaluator import (
    blocks,
    cancellation,
    catch,
    deadlines,
    events,
    function_calls,
    inputs,
    pre_steps,
    steps,
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
from flowengine.evaluator.records import IterationChanges, RunView, Step
from flowengine.evaluator.states import RunState, Signal, StepState, next_state
from flowengine.evaluator.triggers import Trigger
from flowengine.evaluator.working_set import Missing, Snapshot, WorkingSet
from flowengine.program.plan import Plan

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
    StepState.SUSPENDED: function_calls.resume,
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
    lacking = _apply_all(work, triggers)
    if work.unread_cached:
        lacking = lacking or Missing(set(), set())
        lacking.cached |= work.unread_cached
    if lacking is not None:
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


def _apply_all(work: WorkingSet, triggers: Sequence[Trigger]) -> Missing | None:
    """Apply one input after the other; return the rows that are missing, if any.

    Once a row is missing nothing more is decided. Later inputs are applied only to collect
    their missing rows too: a thousand reports must not make a thousand round trips.
    """
    missing: Missing | None = None
    for trigger in triggers:
        try:
            inputs.apply(work, trigger)
            _advance_queue(work)
        except Missing as more:
            missing = missing or Missing(set(), set())
            missing.add(more)
            work.queue.clear()
            work.skipped.clear()
        except Exception:
            if missing is not None:
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
    while row.state not in StepState.FINAL:
        if row.error is not None and deadlines.is_expired(row):
            if row.remaining:
                return  # the rows below it are being cancelled
            deadlines.settle(row)
            # Once more: a step below may have started a child run until it was cancelled.
            cancellation.cancel_children_below(work, row, deadlines.REASON)
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
    state = _ONWARD.get(at)
    if state is None:
        state = next_state(row.object_type, row.path, row.state, signal)
        while state not in HANDLERS and state not in StepState.FINAL:
            state = next_state(row.object_type, row.path, state, Signal.ADVANCE)
        _ONWARD[at] = state
    return state


_ONWARD: dict[tuple[str, str, Signal], str] = {}
_UNSUCCESSFUL = (Signal.FAIL, Signal.SKIP, Signal.CANCEL)

"""Drive a run to its fixed point.

Whatever happened is taken in; every row it concerns is moved on as far as it can go; the
rows that this concerns come next, until nobody is left. What is decided does not depend
on the order in which things happened, and taking in the same thing twice decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_never

from flowengine.evaluator import blocks, catching, mixing, scripting, steps
from flowengine.evaluator.endings import ended
from flowengine.evaluator.failures import StepFailed, StepSkipped
from flowengine.evaluator.foresight import foresee, lacking_above
from flowengine.evaluator.happenings import (
    Failed,
    Happening,
    Lost,
    Started,
    StepContinue,
    StepFail,
    Succeeded,
    TryEnded,
    Unfold,
)
from flowengine.evaluator.records import Error, IterationChanges, RunView, Step, event_of, row_key
from flowengine.evaluator.retries import GiveUp, TryAgain, after_failure, after_loss
from flowengine.evaluator.states import (
    EventState,
    ObjectType,
    RunState,
    Signal,
    StepState,
    next_state,
)
from flowengine.evaluator.work import Missing, Snapshot, Work
from flowengine.program.plan import Plan, RowKind

Handler = Callable[[Work, Step], Signal | None]

#: What is done in a state. A state without a handler is passed through.
HANDLERS: dict[str, Handler] = {
    StepState.FACET_INIT_BEGIN: steps.initialize,
    StepState.FACET_SCRIPTS_BEGIN: scripting.begin,
    StepState.FACET_SCRIPTS_END: scripting.capture,
    StepState.MIXIN_BLOCKS_BEGIN: mixing.begin,
    StepState.MIXIN_BLOCKS_CONTINUE: steps.await_blocks,
    StepState.MIXIN_CAPTURE_BEGIN: mixing.capture,
    StepState.EVENT_TRANSMIT: steps.transmit,
    StepState.BLOCKS_BEGIN: steps.begin_blocks,
    StepState.BLOCKS_CONTINUE: steps.await_blocks,
    StepState.CAPTURE_BEGIN: steps.capture,
    StepState.CATCH_BEGIN: catching.begin_catch,
    StepState.CATCH_CONTINUE: catching.await_catch,
    StepState.ALWAYS_BEGIN: catching.begin_always,
    StepState.ALWAYS_CONTINUE: catching.await_always,
    StepState.EXECUTION_BEGIN: blocks.begin,
    StepState.EXECUTION_CONTINUE: blocks.go_on,
    StepState.EXECUTION_END: blocks.yield_values,
}


def evaluate(
    plan: Plan,
    run: RunView,
    snapshot: Snapshot,
    happenings: Sequence[Happening],
    now: int,
    *,
    foreseen: bool = False,
) -> IterationChanges | Missing:
    """Decide what follows from what happened, or say which rows are wanted to decide it.

    The run is changed in place; on `Missing` the caller evaluates again with a fresh one. Who
    has asked what all happenings are `lacking` says that they are `foreseen`.
    """
    work = Work(plan, run, snapshot, now)
    if not foreseen:
        try:
            foresee(work, happenings)
        except Missing as missing:
            return missing
    if lacking := _take_in_all(work, happenings):
        return lacking
    if run.state == RunState.RUNNING and run.open_steps == 0 and not work.changes.follow_ups:
        # A law of the engine is broken. Saying so is all that can be done, and must be.
        run.alarm = "the run waits, but nothing is outstanding"
    return work.changes


def lacking(
    plan: Plan, run: RunView, snapshot: Snapshot, happenings: Sequence[Happening], now: int
) -> Missing:
    """The rows that happenings concern and that are not known, as far as one can tell ahead."""
    try:
        foresee(Work(plan, run, snapshot, now), happenings)
    except Missing as missing:
        return missing
    return Missing(set(), set())


def _take_in_all(work: Work, happenings: Sequence[Happening]) -> Missing:
    """Take in one happening after the other, or find out which rows they lack.

    Once a row is missing nothing more is decided. The happenings behind it are looked at all
    the same, only to ask for their rows too: a thousand answers must not make a thousand trips.
    """
    missing = Missing(set(), set())
    for happening in happenings:
        try:
            _take_in(work, happening)
            _settle(work)
        except Missing as more:
            missing.steps |= more.steps
            missing.payloads |= more.payloads
            work.queue.clear()
            work.skipped.clear()
        except Exception:
            if missing:
                return missing  # a row was left half way; with all rows this may be in order
            raise
    return missing


def _settle(work: Work) -> None:
    # One at a time from two queues, never by recursion: a chain of ten thousand steps that
    # all end at once is an ordinary run.
    while work.queue or work.skipped:
        is_skipped = bool(work.skipped)
        row = work.skipped.popleft() if is_skipped else work.queue.popleft()
        try:
            if is_skipped:
                ended(work, row)
            elif not row.is_final:
                _move(work, row)
        except Missing as missing:
            missing.steps |= lacking_above(work, row)
            raise


def _move(work: Work, row: Step) -> None:
    """Move one row through its states until it rests or ends."""
    work.touch(row)
    while not row.is_final:
        handler = HANDLERS.get(row.state)
        try:
            signal = handler(work, row) if handler else Signal.ADVANCE
        except (StepFailed, StepSkipped) as stop:
            signal = Signal.FAIL if isinstance(stop, StepFailed) else Signal.SKIP
            row.error = stop.error
        if signal is None:
            return
        if signal is Signal.FAIL or signal is Signal.SKIP:
            signal = catching.turn(work, row, signal)
        row.state = _onward(row, signal)
    ended(work, row)


def _onward(row: Step, signal: Signal) -> str:
    """Where the signal leads, past the states in which nothing is done."""
    at = (row.object_type, row.state, signal)
    if at not in _ONWARD:
        state = next_state(row.object_type, row.path, row.state, signal)
        while state not in HANDLERS and state not in StepState.FINAL:
            state = next_state(row.object_type, row.path, state, Signal.ADVANCE)
        _ONWARD[at] = state
    return _ONWARD[at]


_ONWARD: dict[tuple[str, str, Signal], str] = {}


# --- what happened ---


def _take_in(work: Work, happening: Happening) -> None:
    match happening:
        case Started(inputs):
            _start(work, inputs)
        case TryEnded():
            _end_try(work, happening)
        case StepContinue():
            if step := _waiting(work, happening.step_key, happening.step_id):
                work.changes.canceled_steps.append(step.id)
                _answer(work, step, happening.result)
        case StepFail():
            if step := _waiting(work, happening.step_key, happening.step_id):
                work.changes.canceled_steps.append(step.id)
                _fail(work, step, happening.error)
        case Unfold(key):
            fan = work.find(key)
            if fan is not None and not fan.is_final:
                work.queue.append(fan)
        case _:
            assert_never(happening)


def _start(work: Work, inputs: dict[str, object]) -> None:
    facet = work.plan.facets[work.run.workflow]
    if work.find(row_key(RowKind.STEP, facet.short_name)) is None:
        root = work.create(RowKind.STEP, facet.short_name, ObjectType.WORKFLOW, facet.name, None, 0)
        root.facet_name, root.params = facet.name, {**facet.defaults, **inputs}
        work.queue.append(root)


def _waiting(work: Work, key: str, step_id: str) -> Step | None:
    """Return the step if it still waits for this answer.

    A step that has gone on, or that a retry has put another in place of, takes no answer: so
    a duplicate and a late one change nothing.
    """
    step = work.find(key)
    if step is None or step.id != step_id or step.state != StepState.EVENT_TRANSMIT:
        return None
    return step


def _end_try(work: Work, ended_try: TryEnded) -> None:
    step = _waiting(work, ended_try.step_key, ended_try.step_id)
    if step is None:
        return
    facet = work.facet(step)
    assert facet is not None
    counts = (facet.options, ended_try.try_number, ended_try.losses, work.now)
    match ended_try.outcome:
        case Succeeded(result):
            _answer(work, step, result)
            return
        case Failed(error, retry):
            decision = after_failure(*counts) if retry else GiveUp("")
        case Lost(reason):
            decision = after_loss(*counts)
            error = {"type": "WorkerLost", "message": reason}
    if isinstance(decision, TryAgain):
        steps.create_task(work, step, decision)
        return
    if decision.reason:
        error = {**error, "message": f"{error['message']} ({decision.reason})"}
    _fail(work, step, error)


def _answer(work: Work, step: Step, result: dict[str, object]) -> None:
    step.returns = result
    _leave_event(work, step, EventState.COMPLETED, Signal.CONTINUE)
    work.queue.append(step)


def _fail(work: Work, step: Step, error: Error) -> None:
    step.error = {**error, "path": step.path}
    _leave_event(work, step, EventState.ERROR, catching.turn(work, step, Signal.FAIL))
    if step.is_final:
        ended(work, step)
    else:
        work.queue.append(step)


def _leave_event(work: Work, step: Step, event_state: str, signal: Signal) -> None:
    work.touch(step)
    work.run.open_steps -= 1
    work.changes.add_updated_event(event_of(step, event_state))
    step.state = next_state(step.object_type, step.path, step.state, signal)

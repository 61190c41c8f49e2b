"""The inputs of a run: the start, reports, answers, timers, actions, and their first effect.

An input that came too late, or a second time, changes nothing.
"""

from __future__ import annotations

from typing import assert_never

from flowengine.evaluator import (
    actions,
    cancellation,
    deadlines,
    event_ends,
    events,
    functions,
    result_cache,
    waits,
)
from flowengine.evaluator.records import Refusal, Step, row_key
from flowengine.evaluator.states import (
    ObjectType,
    RunState,
    Signal,
    StepState,
    next_run_state,
)
from flowengine.evaluator.triggers import (
    Action,
    ActivationEnded,
    Answer,
    CancelChildren,
    CancelSteps,
    Delegated,
    Expand,
    Failed,
    Lost,
    RanAhead,
    Report,
    Started,
    StepContinue,
    StepFail,
    Succeeded,
    TimerFired,
    Trigger,
)
from flowengine.evaluator.working_set import WorkingSet
from flowengine.program.addresses import RowKind
from flowengine.program.standard import WAIT_FOR, WAITS


def apply(work: WorkingSet, trigger: Trigger) -> None:
    """Change the rows that an input concerns, and queue those that can go on."""
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
            step = _waiting(work, trigger.step_key, trigger.step_id)
            # A durable function with open calls ends by its code.
            if step is not None and not step.remaining:
                work.changes.canceled_steps.append(step.id)
                work.changes.answered_steps.append(step.id)
                result_cache.keep(work, step, trigger.result)
                event_ends.answer(work, step, trigger.result)
        case StepFail():
            if step := _waiting(work, trigger.step_key, trigger.step_id):
                work.changes.canceled_steps.append(step.id)
                event_ends.fail(work, step, trigger.error)
        case TimerFired(kind=cancellation.TIMER):
            cancellation.time_is_over(work)
        case TimerFired(kind=deadlines.RUN_TIMER):
            cancellation.expire_run(work)
        case TimerFired(kind=deadlines.TIMER):
            _expire(work, trigger)
        case TimerFired():
            if step := _waiting(work, trigger.step_key, trigger.step_id):
                if step.facet_name == WAIT_FOR:
                    event_ends.fail(work, step, waits.timed_out(step))
                else:
                    event_ends.answer(work, step, waits.slept(work))
        case CancelSteps(after):
            for step in cancellation.open_steps(work, after):
                event_ends.cancel(work, step)
        case CancelChildren():
            if found := cancellation.of_children(work, trigger):
                work.changes.child_cancellations.append(found)
        case Answer():
            if answered := waits.answer(work, trigger):
                step, result = answered
                work.changes.ended_waits.append(step.id)
                event_ends.answer(work, step, result)
        case Action():
            actions.apply(work, trigger)
        case RanAhead():
            functions.ran_ahead(work, trigger)
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


def _report(work: WorkingSet, report: Report) -> None:
    task = report.task
    step = _waiting(work, task.step_key, task.step_id)
    if step is None:
        return
    match report.outcome:
        case Succeeded(result):
            if work.statement(step).options.cache is not None:
                result_cache.keep(work, step, result)
            event_ends.answer(work, step, result)
        case Failed():
            event_ends.after_failed_try(work, step, report.outcome, task.try_number, task.losses)
        case Lost(reason) if not step.activation:
            options = work.statement(step).options
            decision = events.after_loss(options, task.try_number, task.losses, work.now)
            error = {"type": "WorkerLost", "message": reason}
            event_ends.try_again_or_fail(work, step, decision, error)
        case Lost():
            functions.after_loss(work, step, task, report.outcome)
        case ActivationEnded():
            functions.activation_ended(work, step, report.outcome)
        case Delegated():
            return
        case _:
            assert_never(report.outcome)


def _expire(work: WorkingSet, timer: TimerFired) -> None:
    step = work.find(timer.step_key)
    if step is None or step.id != timer.step_id or not deadlines.is_open(step):
        return
    if step.state != StepState.EVENT_TRANSMIT:
        deadlines.expire(work, step, cancellation.OPEN_STEPS)
        cancellation.cancel_children_below(work, step, deadlines.REASON)
        return
    if not step.remaining:
        work.changes.canceled_steps.append(step.id)
        cancellation.cancel_children_below(work, step, deadlines.REASON)
    if step.facet_name in WAITS:
        work.changes.ended_waits.append(step.id)
    event_ends.fail(work, step, deadlines.error_of(work, step))

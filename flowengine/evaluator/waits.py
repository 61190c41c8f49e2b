"""Steps that wait without a worker: for a time, or for an answer from outside.

A step that waits for a time has a timer; recovery reports it when it is due. A step that waits for
an answer has a mailbox, a row of the run with the name of the question. It is created by the step,
or by an answer that comes before the step begins and is kept there: so neither an early answer nor
its order in time is lost. A mailbox takes one answer for each step that waits at it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from flowengine.evaluator.call_statements import CallPlan
from flowengine.evaluator.failures import StepFailed
from flowengine.evaluator.records import (
    DroppedAnswer,
    Refusal,
    Step,
    TimerDefinition,
    id_within,
)
from flowengine.evaluator.states import (
    MailboxState,
    ObjectType,
    RunState,
    Signal,
    StepState,
    next_state,
)
from flowengine.evaluator.triggers import Answer, mailbox_key
from flowengine.evaluator.working_set import WorkingSet
from flowengine.program.addresses import RowKind
from flowengine.program.questions import early_misfit
from flowengine.program.standard import RESULT, SLEEP, SLEEP_UNTIL
from flowengine.program.validator import Checks, schema_misfit

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = round(datetime(9999, 12, 31, tzinfo=UTC).timestamp() * 1000)


def begin(work: WorkingSet, step: Step, facet: str) -> dict[str, Any] | None:
    """Begin to wait; return the result of a step that need not wait."""
    values = {name: work.read(value) for name, value in step.params.items()}
    if facet in (SLEEP, SLEEP_UNTIL):
        plan = work.statement(step)
        given = plan.due if isinstance(plan, CallPlan) else None
        due = _due_of(values, step, work.now) if given is None else min(given, _LATEST)
        if due <= work.now:
            return {RESULT: _iso(work.now)}
        _set_timer(work, step, due)
        return None
    name, timeout = values["name"], values.get("timeout")
    if not isinstance(name, str) or not name:
        message = f"waits for {name!r}: the name of an answer is a text"
        raise StepFailed("InvalidWait", message, step.path)
    box = _mailbox(work, name)
    if box.state == MailboxState.WAITING and _waits_at(work, box) is not None:
        message = (
            f"{box.params['path']} waits for {name!r} already: give each step that waits at the "
            "same time a name of its own"
        )
        raise StepFailed("InvalidWait", message, step.path)
    if box.state == MailboxState.KEPT:
        value, problem = _kept(work, box, values.get("schema"))
        if not problem:
            _enter(work, box, Signal.WAIT, box.params)
            return {RESULT: value}
        _drop(work, box, step.path, name, problem)
    number = next_wait(box.state, box.params)
    numbered = {"wait": number} if number else {}  # most runs wait once for a name
    _enter(work, box, Signal.WAIT, {"step": step.key, "id": step.id, "path": step.path, **numbered})
    if timeout is not None:
        _set_timer(work, step, _after(timeout, "timeout", step, work.now))
    return None


def answer(work: WorkingSet, given: Answer) -> tuple[Step, dict[str, Any]] | None:
    """Return the step that an answer ends and its result; None if it is kept or refused."""
    is_early = work.find(mailbox_key(given.name)) is None
    if is_early and (problem := _early_problem(work, given)):
        work.changes.refusals.append(Refusal(given.id, problem))
        return None
    box = _mailbox(work, given.name)
    if given.wait is not None and given.wait != (number := box.params.get("wait", 0)):
        problem = (
            f"it is for wait {given.wait + 1} of the run for {given.name!r}, and the run is at "
            f"wait {number + 1}: ask for a new link"
        )
        work.changes.refusals.append(Refusal(given.id, problem))
        return None
    answered = {"answer": given.id, "actor": given.actor, "at": given.at}
    if box.state == StepState.CREATED:
        _enter(work, box, Signal.ANSWER, answered)
        box.returns = {RESULT: given.value}
        return None
    step = _waits_at(work, box) if box.state == MailboxState.WAITING else None
    if step is None:
        problem = _why_refused(box, given.name)
    else:
        problem = _misfit(work, work.read(step.params.get("schema")), given.value)
    if step is None or problem:
        work.changes.refusals.append(Refusal(given.id, problem))
        return None
    _enter(work, box, Signal.ANSWER, {**box.params, **answered})
    return step, {RESULT: given.value}


def next_wait(state: str, params: Mapping[str, Any]) -> int:
    """Return the number of the next wait at a mailbox; 0 is the first."""
    number: int = params.get("wait", 0)
    return number + (state != StepState.CREATED)


def slept(work: WorkingSet) -> dict[str, Any]:
    """Return the result of a step that has slept: the time at which it goes on."""
    return {RESULT: _iso(work.now)}


def timed_out(step: Step) -> dict[str, Any]:
    """Return the error of a step that has waited for its answer as long as it may."""
    is_called = step.object_type == ObjectType.FUNCTION_CALL
    cure = "`except WaitTimedOut`" if is_called else "`attempt(..., catch={WaitTimedOut: ...})`"
    message = (
        f"nobody answered {step.params['name']!r} within {step.params['timeout']:g} s; "
        f"{cure} goes on without an answer"
    )
    return {"type": "WaitTimedOut", "message": message}


def _waits_at(work: WorkingSet, box: Step) -> Step | None:
    """Return the step that waits at a mailbox; None if it has ended otherwise."""
    step = work.find(box.params["step"])
    if step is None or step.id != box.params["id"] or step.state != StepState.EVENT_TRANSMIT:
        return None
    return step


def _mailbox(work: WorkingSet, name: str) -> Step:
    """Return the mailbox of that name; a new one is in the state Created."""
    found = work.find(mailbox_key(name))
    if found is not None:
        return found
    root = work.get(work.root_key)
    return work.create(RowKind.MAILBOX, name, ObjectType.MAILBOX, "", root, 0)


def _enter(work: WorkingSet, box: Step, signal: Signal, params: Mapping[str, Any]) -> None:
    box.state = next_state(box.object_type, box.path, box.state, signal)
    box.params, box.returns = dict(params), {}
    work.touch(box)


def _kept(work: WorkingSet, box: Step, schema: Any) -> tuple[Any, str]:
    value = work.read(box.returns[RESULT])
    return value, _misfit(work, schema, value)


def _drop(work: WorkingSet, box: Step, path: str, name: str, problem: str) -> None:
    """Empty a mailbox: an answer that does not fit counts as none, and is told in the history."""
    kept = box.params
    work.changes.dropped_answers.append(
        DroppedAnswer(kept["answer"], name, kept["actor"], kept["at"], path, problem)
    )
    box.state = StepState.CREATED


def _early_problem(work: WorkingSet, given: Answer) -> str:
    """Return why an answer is not kept, although no step waits for its name yet."""
    if work.run.state == RunState.CANCELLING:
        return f"the run is being cancelled, and no step of it waits for {given.name!r}"
    if any(facet.function is not None for facet in work.plan.facets.values()):
        return ""  # the code of a durable function decides for which names it waits
    checks = Checks(work.limits.max_schema_checks)
    problem = early_misfit(work.plan, given.name, given.value, checks)
    work.count_checks(checks)
    return problem


def _why_refused(box: Step, name: str) -> str:
    if box.state == MailboxState.KEPT:
        return f"{name!r} has an answer of {_by(box)} already, which the run has not reached yet"
    if "at" in box.params:
        return f"{name!r} was answered by {_by(box)}"
    return f"{box.params['path']} has stopped waiting for {name!r}"


def _by(box: Step) -> str:
    return f"{box.params['actor'] or 'somebody'} at {_iso(box.params['at'])}"


def _misfit(work: WorkingSet, schema: Any, value: Any) -> str:
    if schema is None:
        return ""
    checks = Checks(work.limits.max_schema_checks)
    problem = schema_misfit(schema, value, checks)
    work.count_checks(checks)
    return problem


# --- times ---


def timer_id(step_id: str) -> str:
    return id_within(step_id, "timer")


def _set_timer(work: WorkingSet, step: Step, due: int) -> None:
    work.changes.created_timers.append(
        TimerDefinition(timer_id(step.id), step.run_id, step.id, step.facet_name, due)
    )


def _due_of(values: Mapping[str, Any], step: Step, now: int) -> int:
    if "seconds" in values:
        return _after(values["seconds"], "seconds", step, now)
    until = values["until"]
    try:
        moment = datetime.fromisoformat(until)
    except (TypeError, ValueError):
        message = f"sleeps until {until!r}, which is no time: write 2031-05-01T09:00:00Z"
        raise StepFailed("InvalidWait", message, step.path) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return min(round((moment - _EPOCH) / timedelta(milliseconds=1)), _LATEST)


def _after(seconds: Any, what: str, step: Step, now: int) -> int:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or (isinstance(seconds, float) and not math.isfinite(seconds)):
        message = f"{what} is {seconds!r}: it is a number of seconds"
        raise StepFailed("InvalidWait", message, step.path)
    # Bounded before it is multiplied: a float may overflow, and a whole number have 400 digits.
    bounded = float(min(max(seconds, 0), _LATEST // 1000))
    return min(now + round(bounded * 1000), _LATEST)


def _iso(milliseconds: int) -> str:
    moment = _EPOCH + timedelta(milliseconds=milliseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

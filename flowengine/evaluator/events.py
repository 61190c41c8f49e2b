"""The event of a step: the tasks that are its tries, and the decision after each of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias
from uuid import UUID

from flowengine.evaluator import result_cache, waits
from flowengine.evaluator.admission import StatedKey, queue_id, stated_keys, write_keys
from flowengine.evaluator.call_statements import CallPlan
from flowengine.evaluator.failures import StepFailed
from flowengine.evaluator.holds import state_of_new_task
from flowengine.evaluator.priorities import rank_of
from flowengine.evaluator.records import (
    ACTIVATION,
    RUN_CALL,
    Error,
    EventDefinition,
    Step,
    TaskDefinition,
    derived_id,
    id_within,
    row_key,
)
from flowengine.evaluator.states import EventState, ObjectType, Signal
from flowengine.evaluator.working_set import WorkingSet
from flowengine.program import standard
from flowengine.program.addresses import RowKind
from flowengine.program.event_options import EventOptions, RetryPolicy
from flowengine.program.function_calls import CallKind
from flowengine.program.nodes import FacetKind
from flowengine.program.option_checks import LONGEST_SECONDS
from flowengine.program.plan import EdgeKind, StatementPlan

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: In the error of a try: the seconds before the next one, as the code of the facet demands.
RETRY_AFTER = "retry_after"


def transmit(work: WorkingSet, step: Step) -> Signal | None:
    """Create the event of an event facet and its first task, and wait for the report."""
    facet = work.facet(step)
    if facet is None or facet.kind is not FacetKind.EVENT:
        _answer(work, step, facet.name if facet else "")
        return Signal.ADVANCE
    if facet.name in standard.WAITS:
        result = waits.begin(work, step, facet.name)
        if result is not None:
            step.returns = result
            return Signal.ADVANCE
        work.run.open_steps += 1
        return None
    options = work.statement(step).options
    if options.cache is not None and result_cache.reuse(work, step):
        return Signal.ADVANCE
    keys = _keys_of(work, step, options)  # before anything is changed: it may fail the step
    if step.activation == 0:  # a durable function has one event, and a task for each activation
        ask(work, step)
    work.run.open_steps += 1
    if facet.function is not None:
        step.activation += 1
    number = max(step.activation, 1)
    create_task(work, step, TryAgain(try_number=number, losses=0, due=work.now), keys)
    return None


def ask(work: WorkingSet, step: Step) -> None:
    """Create the event of a step."""
    work.changes.add_created_event(
        EventDefinition(
            id=id_within(step.id, "event"),
            step_id=step.id,
            workflow_id=step.run_id,
            state=EventState.CREATED,
            event_type=step.facet_name,
            payload=step.params,  # stored with the step
        )
    )


def _keys_of(work: WorkingSet, step: Step, options: EventOptions) -> list[StatedKey]:
    """Return the keys of limits and rates that the tries of a step need."""
    if not options.limit and not options.rate:
        return []
    try:
        return stated_keys(
            options,
            lambda name: work.read(step.params[name]),
            work.run,
            work.run.created,
        )
    except (KeyError, TypeError) as problem:
        message = f"a limit or rate needs {problem.args[0]!r} in its key, which is no single value"
        raise StepFailed("InvalidLimitKey", message, step.path) from None


def create_task(
    work: WorkingSet, step: Step, again: TryAgain, keys: list[StatedKey] | None = None
) -> None:
    """Open one try of a step's event."""
    plan = work.statement(step)
    facet, options = plan.facet, plan.options
    assert facet is not None
    if keys is None:
        keys = _keys_of(work, step, options)
    timeout = options.timeout
    name, data_type, task_list = facet.name, "", options.task_list
    if facet.function is not None:
        data_type = ACTIVATION
    elif isinstance(plan, CallPlan) and plan.call_kind is CallKind.RUN:
        # Started by a worker that has the code of the function, which has that of the workflow.
        caller = work.statement(work.parent(step))
        name, data_type, task_list = caller.target, RUN_CALL, caller.options.task_list
    # A second try is not part of a group: it is evaluated when it is reported.
    is_first = again.try_number + again.losses == 1
    work.changes.add_created_task(
        TaskDefinition(
            uuid=id_within(step.id, again.try_number, again.losses),
            name=name,
            runner_id="",
            workflow_id=work.run.id,
            flow_id=work.run.program_hash,
            step_id=step.id,
            state=state_of_new_task(work.run.state, has_keys=bool(keys)),
            created=work.now,
            updated=work.now,
            task_list_name=task_list,
            data_type=data_type,
            data=step.params,
            step_key=step.key,
            step_path=step.path,
            try_number=again.try_number,
            losses=again.losses,
            due=again.due,
            rank=rank_of(
                work.run.priority + options.priority, again.due, work.limits.priority_aging
            ),
            tenant=work.run.tenant,
            limits=write_keys(keys) if keys else None,
            queue=queue_id(work.run.tenant, keys) if keys else None,
            timeout_ms=round(timeout * 1000) if timeout is not None else None,
            runs_once=options.on_loss == "fail",
            circuit=options.breaker,
            join=_join_of(work, step, plan, options) if is_first else "",
        )
    )


def _join_of(work: WorkingSet, step: Step, statement: StatementPlan, options: EventOptions) -> str:
    """Return the key of the row that the end of this step only counts down, or nothing.

    A wrong answer costs time, not correctness: every report is evaluated in the end.
    """
    if options.cache is not None:
        return ""  # its result is kept when it is reported, not when the last of a group is
    if isinstance(statement, CallPlan):
        return "" if statement.group is None else f"{step.parent}:{statement.group}"
    if statement.function is not None:
        return ""  # the report of an activation is hardly ever the end of its step
    if statement.body or statement.always or len(statement.edges) > 1:
        return ""
    block = work.parent(step)
    if not statement.edges:
        if block.object_type == ObjectType.FAN:
            return _of_items(block)
        if block.remaining > 1:
            return block.key if block.object_type in (ObjectType.BLOCK, ObjectType.CASE) else ""
        if block.object_type == ObjectType.ITEM:
            return _of_items(work.parent(block))
        return ""
    (edge,) = statement.edges
    if edge.kind is not EdgeKind.NEEDS or edge.sibling is None or edge.sibling.is_lazy:
        return ""
    waiting = work.find(row_key(RowKind.STEP, block.path + edge.row.suffix))
    return waiting.key if waiting is not None and waiting.waiting > 1 else ""


def _of_items(fan: Step) -> str:
    return fan.key if fan.remaining > 1 and not fan.is_held_back else ""


# --- retries ---


@dataclass(frozen=True, slots=True)
class TryAgain:
    try_number: int
    losses: int
    due: int  #: milliseconds since the epoch


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: str  #: added to the error message; may be empty


Decision: TypeAlias = TryAgain | GiveUp


def after_failure(
    options: EventOptions,
    try_number: int,
    losses: int,
    now: int,
    error: Error | None = None,
    step_id: str = "",
) -> Decision:
    """Decide after a try that ended with an error."""
    policy, error = options.retry, error or {}
    demanded = error.get(RETRY_AFTER)
    if demanded is None and not policy.covers((error.get("type", ""), *error.get("bases", ()))):
        kind = error.get("type", "this error")
        return GiveUp(f"no further try after {kind}" if policy.attempts > 1 else "")
    if try_number >= policy.attempts:
        if demanded is not None and policy.attempts == 1:
            return GiveUp("no further try: the facet has no retry=Retry(attempts=…)")
        is_retried = policy.attempts > 1
        return GiveUp(f"failed {try_number} of {policy.attempts} tries" if is_retried else "")
    wait = wait_before(policy, try_number, step_id) if demanded is None else float(demanded)
    return TryAgain(try_number + 1, losses, now + round(min(wait, LONGEST_SECONDS) * 1000))


def wait_before(policy: RetryPolicy, try_number: int, step_id: str) -> float:
    """Return the seconds before the next try."""
    try:
        growth = float(policy.factor) ** (try_number - 1)
        wait = min(policy.first_wait * growth, policy.max_wait, LONGEST_SECONDS)
    except OverflowError:  # after about a thousand tries
        wait = min(policy.max_wait, LONGEST_SECONDS)
    if not policy.jitter:
        return wait
    # Derived from ids: whoever evaluates the same report decides the same.
    drawn = int(derived_id(step_id, "jitter", try_number)[:8], 16) / 0xFFFF_FFFF
    return wait * (1 - policy.jitter * drawn)


def after_loss(options: EventOptions, try_number: int, losses: int, now: int) -> Decision:
    """Decide after a try whose worker died: losses have a limit of their own."""
    if options.on_loss == "fail":
        return GiveUp("it may have done its work, and must not run twice")
    losses, allowed = losses + 1, options.max_losses
    if losses > allowed:
        return GiveUp(f"its worker died {losses} times, {allowed} losses are allowed")
    return TryAgain(try_number, losses, now)


# --- built-in facets ---


def _answer(work: WorkingSet, step: Step, facet: str) -> None:
    """Answer a built-in facet without a worker: from the time of the evaluation and the step's id.

    Both are deterministic, and the answer is recorded with the step.
    """
    if facet == standard.NOW:
        moment = _EPOCH + timedelta(milliseconds=work.now)
        result = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    elif facet == standard.UUID:
        # Marked as version 4, for readers that check; it is a digest, not a random number.
        result = str(UUID(hex=derived_id(step.id, "uuid"), version=4))
    else:
        return
    step.returns = {**step.returns, standard.RESULT: result}

"""The handlers of a block, a foreach block, an item and a case in each of their states."""

from __future__ import annotations

from flowengine.evaluator import foreach_expansion
from flowengine.evaluator.failures import StepFailed, StepSkipped, await_children, problem
from flowengine.evaluator.pre_steps import result_of
from flowengine.evaluator.records import Step, row_key
from flowengine.evaluator.scope import RowScope, source_key
from flowengine.evaluator.states import ObjectType, Signal, StepState, next_state
from flowengine.evaluator.steps import create_statement, has_ended
from flowengine.evaluator.working_set import WorkingSet
from flowengine.evaluator.yields import yielded
from flowengine.program.addresses import RowKind
from flowengine.program.expressions import EvaluationError, evaluate
from flowengine.program.plan import BlockPlan, ChoicePlan


def begin(work: WorkingSet, row: Step) -> Signal:
    """Create the steps that can begin, or count the items of a foreach."""
    plan = work.block(row)
    if row.object_type == ObjectType.FAN:
        return foreach_expansion.begin(work, row, plan)
    if row.object_type == ObjectType.WHEN:
        return _choose(work, row, plan)
    work.require(len(plan.statements), row.path)
    waiting_for = [source_key(work, row, source) for source in plan.captures]
    work.want(waiting_for)
    awaited = sum(1 for key in waiting_for if not has_ended(work, key))
    begun = [statement for statement in plan.statements if not statement.is_lazy]
    row.remaining = len(begun) + awaited
    work.want_kept(row_key(RowKind.STEP, f"{row.path}.{statement.name}") for statement in begun)
    for statement in begun:
        create_statement(work, row, statement)
    return Signal.ADVANCE


def go_on(work: WorkingSet, row: Step) -> Signal | None:
    """Begin further items, and advance when all children have ended."""
    if row.object_type == ObjectType.FAN:
        return foreach_expansion.go_on(work, row)
    return await_children(work, row)


def yield_values(work: WorkingSet, row: Step) -> Signal:
    """Evaluate the yields: every step that they name has ended."""
    plan = work.block(row)
    if row.object_type == ObjectType.FAN:
        return Signal.ADVANCE  # its items yield; its container reads them in item order
    if row.object_type == ObjectType.WHEN:
        return _capture_cases(work, row, plan)
    if plan.is_script:
        script = row_key(RowKind.STEP, f"{row.path}.script")
        row.yields = [(0, result_of(work, script))]
        return Signal.ADVANCE
    outside = [source_key(work, row, source) for source in plan.captures]
    carriers = [row_key(RowKind.STEP, f"{row.path}.{s.name}") for s in plan.carriers]
    work.want([*outside, *carriers])
    for key in outside:
        if work.get(key).has_failed:
            raise StepSkipped(work.get(key))
    row.yields = [entry for key in carriers for entry in work.get(key).yields]
    if row.yields:
        work.account([attributes for _, attributes in row.yields], row.path)
    if plan.yields:
        row.yields += yielded(work, row, plan, row.path)
    return Signal.ADVANCE


# --- when ---


def _choose(work: WorkingSet, row: Step, plan: BlockPlan) -> Signal:
    """Create a row for each case; the taken ones begin.

    A case that is not taken gets a skipped row, so that a page can show it.
    """
    choice = plan.choice
    assert choice is not None
    taken = _taken(work, row, choice)
    if not taken:
        if choice.is_optional:
            row.error = problem("Skipped", "no case of the catch is for this error", row.path)
            return Signal.SKIP
        message = "no case matches, and there is no default"
        raise StepFailed("NoCaseMatches", message, row.path)
    container = row.path.removesuffix(plan.segment)
    work.want_kept(row_key(RowKind.CASE, container + case.segment) for case in choice.cases)
    for index, case in enumerate(choice.cases):
        path = container + case.segment
        if index not in taken and work.has_kept(row_key(RowKind.CASE, path)):
            continue
        created = work.create(RowKind.CASE, path, ObjectType.CASE, case.address, row, index)
        if created.key in work.adopted:
            continue
        if index in taken:
            work.queue.append(created)
        else:
            created.state = next_state(ObjectType.CASE, path, created.state, Signal.SKIP)
    row.remaining = len(taken)
    return Signal.ADVANCE


def _taken(work: WorkingSet, row: Step, choice: ChoicePlan) -> set[int]:
    scope = RowScope(work, row, choice.sources)
    taken: set[int] = set()
    for index, condition in enumerate(choice.conditions):
        if condition is None:
            continue
        try:
            if evaluate(condition, scope):
                taken.add(index)
        except EvaluationError as error:
            message = f"condition of case {index}: {error}"
            raise StepFailed(error.kind, message, row.path) from None
        if taken and choice.is_first_only:
            return taken
    return taken or {i for i, condition in enumerate(choice.conditions) if condition is None}


def _capture_cases(work: WorkingSet, row: Step, plan: BlockPlan) -> Signal:
    """Take over the yields of the cases that ran, in program order."""
    assert plan.choice is not None
    container = row.path.removesuffix(plan.segment)
    keys = [row_key(RowKind.CASE, container + case.segment) for case in plan.choice.cases]
    work.want(keys)
    cases = [work.get(key) for key in keys]
    row.yields = [y for case in cases if case.state == StepState.COMPLETE for y in case.yields]
    return Signal.ADVANCE

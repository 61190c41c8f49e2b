"""What happens to a block, a foreach block, an item and a case in each of their states."""

from __future__ import annotations

from flowengine.evaluator import branching, scripting, unfolding
from flowengine.evaluator.failures import StepFailed, StepSkipped, problem
from flowengine.evaluator.records import Step, row_key
from flowengine.evaluator.scope import RowScope, source_key
from flowengine.evaluator.states import ObjectType, Signal
from flowengine.evaluator.steps import children_ended, has_ended
from flowengine.evaluator.work import Work
from flowengine.program.expressions import EvaluationError
from flowengine.program.plan import RowKind, StatementPlan


def begin(work: Work, row: Step) -> Signal:
    """Create the steps that can begin, or count the items of a foreach."""
    plan = work.block(row)
    if row.object_type == ObjectType.FAN:
        return unfolding.begin(work, row, plan)
    if row.object_type == ObjectType.WHEN:
        return branching.choose(work, row, plan)
    waiting_for = [source_key(work, row, source) for source in plan.captures]
    work.want(waiting_for)
    awaited = sum(1 for key in waiting_for if not has_ended(work, key))
    row.remaining = len(plan.statements) + awaited
    for statement in plan.statements:
        if not statement.is_lazy:
            _create_statement(work, row, statement)
    return Signal.ADVANCE


def _create_statement(work: Work, block: Step, statement: StatementPlan) -> None:
    """Create a step's row; it begins when all it needs has completed.

    Steps of the same block cannot have ended yet. Steps further out may have, then they are
    not counted: their end has found no row to tell.
    """
    outside = [source_key(work, block, s) for s in statement.needs if s.hops > 0]
    work.want(outside)
    failed = [row for key in outside if (row := work.find(key)) and row.has_failed]
    step = create_step(work, block, statement)
    if failed:
        work.skip(step, failed[0])
        return
    inside = len(statement.needs) - len(outside)
    step.waiting = inside + sum(1 for key in outside if not has_ended(work, key))
    if step.waiting == 0:
        work.queue.append(step)


def create_step(work: Work, block: Step, statement: StatementPlan) -> Step:
    """Create the row of a statement."""
    step = work.create(
        RowKind.STEP,
        f"{block.path}.{statement.name}",
        statement.kind.value,
        statement.address,
        block,
        statement.index,
    )
    step.facet_name = statement.target
    return step


def go_on(work: Work, row: Step) -> Signal | None:
    """Unfold further items, and go on when all children have ended."""
    if row.object_type == ObjectType.FAN:
        return unfolding.go_on(work, row)
    return children_ended(row)


def yield_values(work: Work, row: Step) -> Signal:
    """Evaluate the yields: every step they name has ended by now."""
    plan = work.block(row)
    if row.object_type == ObjectType.FAN:
        return Signal.ADVANCE  # its items yield, and are read in item order
    if row.object_type == ObjectType.WHEN:
        return branching.gather(work, row, plan)
    if plan.is_script:
        script = row_key(RowKind.STEP, f"{row.path}.script")
        row.yields = [(0, scripting.result_of(work, script))]
        return Signal.ADVANCE
    outside = [source_key(work, row, source) for source in plan.captures]
    carriers = [row_key(RowKind.STEP, f"{row.path}.{s.name}") for s in plan.carriers]
    work.want([*outside, *carriers])
    for key in outside:
        if work.get(key).has_failed:
            raise StepSkipped(work.get(key))
    row.yields = [entry for key in carriers for entry in work.get(key).yields]
    if not plan.yields:
        return Signal.ADVANCE
    scope = RowScope(work, row, plan.yield_sources)
    try:
        row.yields += [(y.levels, scope.values(y.attributes)) for y in plan.yields]
    except EvaluationError as error:
        raise StepFailed(problem("EvaluationError", f"yield: {error}", row.path)) from None
    return Signal.ADVANCE

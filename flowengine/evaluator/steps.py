"""The handlers of a step in each of its states.

A handler does the work of one state and returns the signal that advances the step, or None: then
the step waits in that state for an input.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowengine.evaluator import deadlines
from flowengine.evaluator.failures import StepFailed
from flowengine.evaluator.pre_steps import mixin_arguments
from flowengine.evaluator.records import Step, row_key
from flowengine.evaluator.scope import RowScope, scope_row, source_key
from flowengine.evaluator.states import ObjectType, Signal
from flowengine.evaluator.working_set import WorkingSet
from flowengine.program.addresses import RowKind
from flowengine.program.expressions import EvaluationError, evaluate
from flowengine.program.plan import BlockPlan, SchemaPlan, StatementKind, StatementPlan
from flowengine.program.types import misfits
from flowengine.program.validator import Checks


def initialize(work: WorkingSet, step: Step) -> Signal:
    """Evaluate the arguments: they are the step's parameters."""
    plan = work.step_plan(step)
    # The parameters of a workflow are its inputs, which it has already.
    if isinstance(plan, StatementPlan):
        work.require_bytes(step.path)
        if plan.deadline is not None:
            deadlines.set_timer(work, step, plan.deadline)
        scope = RowScope(work, scope_row(work, step), plan.sources)
        try:
            if plan.kind is StatementKind.MIXIN:
                step.params = mixin_arguments(work, step, plan, scope)
            else:
                step.params = scope.values(plan.arguments)
            if plan.condition is not None and not evaluate(plan.condition, scope):
                raise StepFailed("AssertionFailed", "sys.assert does not hold", step.path)
        except EvaluationError as error:
            raise StepFailed(error.kind, str(error), step.path) from None
        if plan.schema is not None:
            _instantiate(work, step, plan.schema)
    if plan.pre_script is not None:
        return Signal.SCRIPT
    return Signal.MIX if plan.mixins else Signal.ADVANCE


def _instantiate(work: WorkingSet, step: Step, schema: SchemaPlan) -> None:
    """Make the arguments of an instance its results, if they match the schema."""
    values = {name: work.read(value) for name, value in step.params.items()}
    checks = Checks(work.limits.max_schema_checks)
    problems = misfits(schema.fields, values, work.plan.schemas, checks)
    work.count_checks(checks)
    if problems:
        message = f"not a {schema.name}: {'; '.join(problems)}"
        raise StepFailed("TypeMismatch", message, step.path)
    step.params, step.returns = {}, step.params


def begin_blocks(work: WorkingSet, step: Step) -> Signal:
    """Create the blocks of the body; they run side by side."""
    if body := work.step_plan(step).body:
        create_blocks(work, step, body)
    return Signal.ADVANCE


def create_blocks(work: WorkingSet, step: Step, plans: Sequence[BlockPlan]) -> None:
    """Create blocks below a step, which then waits for them."""
    if plans:
        _check_recursion(work, step)
        work.require(len(plans), step.path)
    work.want_kept(row_key(plan.kind, step.path + plan.segment) for plan in plans)
    for plan in plans:
        block = _create_block(work, step, plan)
        if block.waiting == 0 and block.key not in work.adopted:
            work.queue.append(block)
    step.remaining = len(plans)


def _check_recursion(work: WorkingSet, step: Step) -> None:
    """Fail a step that is nested too deeply, or one recursive call too many.

    The root row counts the calls: depth alone does not bound a facet that calls itself twice.
    """
    deepest = work.limits.max_step_depth
    if step.path.count(".") > deepest:
        message = (
            f"nested more than {deepest:,} levels deep, which is the limit (setting "
            "max_step_depth): a facet that calls itself must end"
        )
        raise StepFailed("NestedTooDeep", message, step.path)
    facet, limit = work.facet(step), work.limits.max_recursive_calls
    if facet is None or not facet.is_recursive:
        return
    root = work.get(work.root_key)
    if root.item_count >= limit:
        message = (
            f"{facet.name!r} calls itself, and the run has made {limit:,} recursive calls, which "
            "is the limit (setting max_recursive_calls): the recursion must end, or the limit "
            "must be raised"
        )
        raise StepFailed("TooManyRecursiveCalls", message, step.path)
    root.item_count += 1
    work.touch(root)


_OBJECT_TYPES = {
    RowKind.BLOCK: ObjectType.BLOCK,
    RowKind.FAN: ObjectType.FAN,
    RowKind.WHEN: ObjectType.WHEN,
}


def _create_block(work: WorkingSet, step: Step, plan: BlockPlan) -> Step:
    # Sources of a foreach and of a when are read from their container, before the row exists: a
    # missing row stops the evaluation.
    waiting, failed = 0, None
    if plan.kind is not RowKind.BLOCK:
        needs = [source_key(work, step, source) for source in plan.needs]
        keys = [*needs, *(source_key(work, step, source) for source in plan.awaits)]
        work.want(keys)
        waiting = sum(1 for key in keys if not has_ended(work, key))
        rows = [work.find(key) for key in needs]
        failed = next((row for row in rows if row is not None and row.has_failed), None)
    path = step.path + plan.segment
    block = work.create(plan.kind, path, _OBJECT_TYPES[plan.kind], plan.address, step, plan.index)
    if block.key in work.adopted:
        return block
    block.waiting = waiting
    if failed is not None:
        # At once: it does not wait for the others, and must not be counted down by them.
        work.skip(block, failed)
    return block


def has_ended(work: WorkingSet, key: str) -> bool:
    row = work.find(key)
    return row is not None and row.is_final


# --- rows of statements ---


def create_statement(work: WorkingSet, block: Step, statement: StatementPlan) -> None:
    """Create a step's row; it begins when all the steps that it waits for have ended.

    Steps of the same block cannot have ended yet. Steps further out may have: these are not
    counted, because their end did not count down a row that was not created yet.
    """
    needed = [source_key(work, block, s) for s in statement.needs if s.hops > 0]
    outside = needed + [source_key(work, block, s) for s in statement.awaits if s.hops > 0]
    work.want(outside)
    failed = [row for key in needed if (row := work.find(key)) and row.has_failed]
    step = create_step(work, block, statement)
    if step.key in work.adopted:
        return
    if failed:
        work.skip(step, failed[0])
        return
    inside = len(statement.needs) + len(statement.awaits) - len(outside)
    step.waiting = inside + sum(1 for key in outside if not has_ended(work, key))
    if step.waiting == 0:
        work.queue.append(step)


def create_step(work: WorkingSet, block: Step, statement: StatementPlan) -> Step:
    """Create the row of a statement; in a virtual item its parent is the foreach."""
    path = f"{block.path}.{statement.name}"
    kind, parent, index = statement.kind.value, block, statement.index
    if block.is_virtual:
        work.virtual_items[row_key(RowKind.STEP, path)] = block
        parent, index = work.parent(block), block.index
    step = work.create(RowKind.STEP, path, kind, statement.address, parent, index)
    step.facet_name = statement.target
    return step

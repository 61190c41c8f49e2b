"""The handlers of a step in each of its states.

A handler does the work of one state and returns the signal that advances the step, or None: then
the step waits in that state for an input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flowengine.evaluator import mixin_steps
from flowengine.evaluator.builtins import answer
from flowengine.evaluator.failures import StepFailed, item_error, problem
from flowengine.evaluator.foreach_items import item_keys, scope_row, yield_as_item
from flowengine.evaluator.joins import join_of
from flowengine.evaluator.records import Step, TaskDefinition, event_of, id_within, row_key
from flowengine.evaluator.retries import TryAgain
from flowengine.evaluator.scope import RowScope, source_key
from flowengine.evaluator.states import ObjectType, Signal, StepState
from flowengine.evaluator.working_set import WorkingSet
from flowengine.evaluator.yields import Merge
from flowengine.program.addresses import RowKind
from flowengine.program.expressions import EvaluationError, evaluate
from flowengine.program.nodes import FacetKind
from flowengine.program.plan import BlockPlan, SchemaPlan, StatementKind, StatementPlan
from flowengine.program.types import misfits

#: Levels of nesting: a facet that calls itself may never end.
DEEPEST = 1000


def initialize(work: WorkingSet, step: Step) -> Signal:
    """Evaluate the arguments: they are the step's parameters."""
    plan = work.step_plan(step)
    # The parameters of a workflow are its inputs, which it has already.
    if isinstance(plan, StatementPlan):
        scope = RowScope(work, scope_row(work, step), plan.sources)
        try:
            if plan.kind is StatementKind.MIXIN:
                step.params = mixin_steps.arguments(work, step, plan, scope)
            else:
                step.params = scope.values(plan.arguments)
            if plan.condition is not None and not evaluate(plan.condition, scope):
                raise StepFailed(problem("AssertionFailed", "sys.assert does not hold", step.path))
        except EvaluationError as error:
            raise StepFailed(problem("EvaluationError", str(error), step.path)) from None
        if plan.schema is not None:
            _instantiate(work, step, plan.schema)
    if plan.pre_script is not None:
        return Signal.SCRIPT
    return Signal.MIX if plan.mixins else Signal.ADVANCE


def _instantiate(work: WorkingSet, step: Step, schema: SchemaPlan) -> None:
    """Make the arguments of an instance its results, if they match the schema."""
    values = {name: work.read(value) for name, value in step.params.items()}
    if problems := misfits(schema.fields, values, work.plan.schemas):
        message = f"not a {schema.name}: {'; '.join(problems)}"
        raise StepFailed(problem("TypeMismatch", message, step.path))
    step.params, step.returns = {}, step.params


def transmit(work: WorkingSet, step: Step) -> Signal | None:
    """Create the event of an event facet and its first task, and wait for the report."""
    facet = work.facet(step)
    if facet is None or facet.kind is not FacetKind.EVENT:
        answer(work, step, facet.name if facet else "")
        return Signal.ADVANCE
    work.changes.add_created_event(event_of(step))
    work.run.open_steps += 1
    create_task(work, step, TryAgain(try_number=1, losses=0, due=work.now))
    return None


def create_task(work: WorkingSet, step: Step, again: TryAgain) -> None:
    """Open one try of a step's event."""
    plan = work.statement(step)
    facet = plan.facet
    assert facet is not None
    timeout = facet.options.timeout if plan.timeout is None else plan.timeout
    work.changes.add_created_task(
        TaskDefinition(
            uuid=id_within(step.id, again.try_number, again.losses),
            name=facet.name,
            runner_id="",
            workflow_id=work.run.id,
            flow_id=work.run.program_hash,
            step_id=step.id,
            created=work.now,
            updated=work.now,
            task_list_name=facet.options.task_list,
            data=step.params,
            step_key=step.key,
            step_path=step.path,
            try_number=again.try_number,
            losses=again.losses,
            due=again.due,
            priority=work.run.priority,
            timeout_ms=round(timeout * 1000) if timeout is not None else None,
            runs_once=facet.options.on_loss == "fail",
            circuit=facet.options.breaker,
            # A second try is not part of a group: it is evaluated when it is reported.
            join=join_of(work, step) if again.try_number + again.losses == 1 else "",
        )
    )


def begin_blocks(work: WorkingSet, step: Step) -> Signal:
    """Create the blocks of the body; they run side by side."""
    body = work.step_plan(step).body
    if body is not None:
        create_blocks(work, step, body.blocks)
    return Signal.ADVANCE


def create_blocks(work: WorkingSet, step: Step, plans: Sequence[BlockPlan]) -> None:
    """Create blocks below a step, which then waits for them."""
    if plans:
        _check_recursion(work, step)
    for plan in plans:
        block = _create_block(work, step, plan)
        if block.waiting == 0:
            work.queue.append(block)
    step.remaining = len(plans)


def _check_recursion(work: WorkingSet, step: Step) -> None:
    """Fail a step that is nested too deeply, or one recursive call too many.

    The root row counts the calls: depth alone does not bound a facet that calls itself twice.
    """
    if step.path.count(".") > DEEPEST:
        message = f"nested more than {DEEPEST} levels deep: a facet that calls itself must end"
        raise StepFailed(problem("NestedTooDeep", message, step.path))
    facet, limit = work.facet(step), work.plan.max_recursive_calls
    if facet is None or not facet.is_recursive:
        return
    root = work.get(work.root_key)
    if root.item_count >= limit:
        message = (
            f"{facet.name!r} calls itself, and the run has made {limit:,} recursive calls, which "
            "is the limit (setting max_recursive_calls): the recursion must end, or the limit "
            "must be raised"
        )
        raise StepFailed(problem("TooManyRecursiveCalls", message, step.path))
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
    block.waiting = waiting
    if failed is not None:
        # At once: it does not wait for the others, and must not be counted down by them.
        work.skip(block, failed)
    return block


def has_ended(work: WorkingSet, key: str) -> bool:
    row = work.find(key)
    return row is not None and row.is_final


def await_blocks(work: WorkingSet, step: Step) -> Signal | None:
    """Advance when the last block has ended; fail with the first failed block's error."""
    return children_ended(step)


def children_ended(row: Step) -> Signal | None:
    """Return the signal of a row whose children may have ended."""
    if row.remaining:
        return None
    if row.failure is None:
        return Signal.ADVANCE
    row.error = row.failure["error"]
    return Signal.FAIL if row.failure["rank"][0] == 0 else Signal.SKIP


def capture(work: WorkingSet, step: Step) -> Signal:
    """Merge the yields of the body, and of a catch, into the results, in program order."""
    plan = work.step_plan(step)
    blocks = list(plan.body.blocks) if plan.body else []
    if step.next_index:  # caught: some blocks have not completed
        blocks = [b for b in blocks if _is_complete(work, step, b)]
        blocks.append(plan.catches[step.next_index - 1])
    if blocks:
        _want_yields(work, step, blocks)
        merge = Merge(mixin_steps.with_aliases(work, step, plan.aliases), work.read)
        step.yields = [entry for b in blocks for entry in _merge_block(work, step, b, merge)]
        step.returns = merge.values
        mixin_steps.split_aliases(work, step, plan.aliases)
    elif step.object_type == ObjectType.CALL:
        yield_as_item(work, step)
    return Signal.ADVANCE if plan.always is None else Signal.CLOSE


def _is_complete(work: WorkingSet, step: Step, plan: BlockPlan) -> bool:
    block = work.find(row_key(plan.kind, step.path + plan.segment))
    return block is not None and block.state == StepState.COMPLETE


def _merge_block(
    work: WorkingSet, step: Step, plan: BlockPlan, merge: Merge
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Merge the yields of a block to the step; return those that go further out."""
    path = step.path + plan.segment
    if plan.foreach is None:
        sources = [work.get(row_key(plan.kind, path))]
    else:
        count = work.get(row_key(RowKind.FAN, path)).item_count
        sources = [work.get(key) for key in item_keys(plan, path, count)]
        # The same if all items failed and their errors were collected.
        is_empty = all(item.has_failed for item in sources)
        for levels, name in plan.foreach.empty_lists if is_empty else ():
            if levels == 0:
                merge.set_empty_list(name)
            else:
                yield levels - 1, {name: []}
        if plan.foreach.collects_errors:
            merge.add({"errors": [item_error(item) for item in sources if item.has_failed]})
    for levels, attributes in (entry for source in sources for entry in source.yields):
        if levels == 0:
            merge.add(attributes)
        else:
            yield levels - 1, attributes


def _want_yields(work: WorkingSet, step: Step, blocks: Sequence[BlockPlan]) -> None:
    """Want all rows that hold yields: a wide foreach is read in one round trip."""
    work.want([row_key(plan.kind, step.path + plan.segment) for plan in blocks])
    for plan in blocks:
        if plan.foreach:
            path = step.path + plan.segment
            work.want(item_keys(plan, path, work.get(row_key(RowKind.FAN, path)).item_count))


# --- rows of statements ---


def create_statement(work: WorkingSet, block: Step, statement: StatementPlan) -> None:
    """Create a step's row; it begins when all the steps that it needs have completed.

    Steps of the same block cannot have ended yet. Steps further out may have: these are not
    counted, because their end did not count down a row that was not created yet.
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

"""The items of a foreach: rows of their own, or virtual items.

Most bodies are one call. Then the item is virtual: the step is the foreach's child, with the
item's index, and holds the item's yields. A fan-out writes three rows for it, not four.
"""

from __future__ import annotations

from collections.abc import Iterator

from flowengine.evaluator.failures import StepFailed, problem
from flowengine.evaluator.records import Step, row_key
from flowengine.evaluator.scope import RowScope
from flowengine.evaluator.states import ObjectType
from flowengine.evaluator.working_set import WorkingSet
from flowengine.program.addresses import RowKind
from flowengine.program.expressions import EvaluationError
from flowengine.program.plan import BlockPlan


def item_keys(plan: BlockPlan, path: str, count: int) -> Iterator[str]:
    """Return the keys of the rows that hold the yields of the items of a foreach."""
    call = plan.foreach.single_call if plan.foreach else None
    kind, rest = (RowKind.ITEM, "") if call is None else (RowKind.STEP, f".{call.name}")
    return (row_key(kind, f"{path}[{index}]{rest}") for index in range(count))


def scope_row(work: WorkingSet, step: Step) -> Step:
    """Return the row from which the names in a statement are resolved: that of its block.

    For the step of a virtual item it is an item without a stored row. Only the evaluation that
    creates the step has the item's variable, and only that one reads it.
    """
    block = work.parent(step)
    if block.object_type != ObjectType.FAN:
        return block
    return work.virtual_items.get(step.key) or virtual_item(block, step.index)


def virtual_item(fan: Step, index: int) -> Step:
    """Return the row of an item that is not stored."""
    path = f"{fan.path}[{index}]"
    return Step(
        id="",
        run_id=fan.run_id,
        key=row_key(RowKind.ITEM, path),
        path=path,
        object_type=ObjectType.ITEM,
        address=fan.address,
        parent=fan.key,
        index=index,
    )


def yield_as_item(work: WorkingSet, step: Step) -> None:
    """Store the yields of a virtual item in its step."""
    fan = work.parent(step)
    if fan.object_type == ObjectType.FAN:
        step.yields = yielded(work, virtual_item(fan, step.index), work.block(fan), step.path)


def yielded(
    work: WorkingSet, row: Step, plan: BlockPlan, path: str
) -> list[tuple[int, dict[str, object]]]:
    """Evaluate the yields of a block from its row; an error gets the path."""
    scope = RowScope(work, row, plan.yield_sources)
    try:
        return [(y.levels, scope.values(y.attributes)) for y in plan.yields]
    except EvaluationError as error:
        raise StepFailed(problem("EvaluationError", f"yield: {error}", path)) from None

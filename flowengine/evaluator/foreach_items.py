"""The items of a foreach: each a row, or no row at all.

Most bodies are one call. Then the step stands for its item: it is the foreach's child, with
the item's index, and keeps what the item yields. A fan-out writes three rows for it, not four.
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
    """Return the keys of the rows that stand for the items of the foreach at this path."""
    call = plan.foreach.single_call if plan.foreach else None
    kind, rest = (RowKind.ITEM, "") if call is None else (RowKind.STEP, f".{call.name}")
    return (row_key(kind, f"{path}[{index}]{rest}") for index in range(count))


def scope_row(work: WorkingSet, step: Step) -> Step:
    """Return the row from which the names in a statement are looked up.

    That of its block; for a step that stands for its item one that nobody has written. Its
    variable is known only in the evaluation that creates the step, which alone reads it.
    """
    block = work.parent(step)
    if block.object_type != ObjectType.FAN:
        return block
    return work.unwritten.get(step.key) or virtual_item(block, step.index)


def virtual_item(fan: Step, index: int) -> Step:
    """Return the row that an item would have."""
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
    """Let a step that stands for its item yield what that yields."""
    fan = work.parent(step)
    if fan.object_type == ObjectType.FAN:
        step.yields = yielded(work, virtual_item(fan, step.index), work.block(fan), step.path)


def yielded(
    work: WorkingSet, row: Step, plan: BlockPlan, path: str
) -> list[tuple[int, dict[str, object]]]:
    """Evaluate the yields of a block, seen from its row; whose path they fail with is given."""
    scope = RowScope(work, row, plan.yield_sources)
    try:
        return [(y.levels, scope.values(y.attributes)) for y in plan.yields]
    except EvaluationError as error:
        raise StepFailed(problem("EvaluationError", f"yield: {error}", path)) from None

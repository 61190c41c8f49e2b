"""Find the join counter of a task: the row that the task's end only counts down.

Reports of such tasks need no evaluation and no lock on the run, except after the last of their
group.
"""

from __future__ import annotations

from flowengine.evaluator.records import Step, row_key
from flowengine.evaluator.states import ObjectType
from flowengine.evaluator.working_set import WorkingSet
from flowengine.program.addresses import RowKind
from flowengine.program.plan import EdgeKind


def join_of(work: WorkingSet, step: Step) -> str:
    """Return the key of the row that the end of this step only counts down, or nothing.

    A wrong answer costs time, not correctness: every report is evaluated in the end.
    """
    statement = work.statement(step)
    if statement.body is not None or statement.always is not None:
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
    if len(statement.edges) > 1:
        return ""
    (edge,) = statement.edges
    if edge.kind is not EdgeKind.NEEDS or edge.sibling is None or edge.sibling.is_lazy:
        return ""
    waiting = work.find(row_key(RowKind.STEP, block.path + edge.row.suffix))
    return waiting.key if waiting is not None and waiting.waiting > 1 else ""


def _of_items(fan: Step) -> str:
    return fan.key if fan.remaining > 1 and not fan.is_held_back else ""

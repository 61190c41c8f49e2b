"""How the row of a statement comes into being."""

from __future__ import annotations

from flowengine.evaluator.records import Step, row_key
from flowengine.evaluator.scope import source_key
from flowengine.evaluator.steps import has_ended
from flowengine.evaluator.working_set import WorkingSet
from flowengine.program.addresses import RowKind
from flowengine.program.plan import StatementPlan


def create_statement(work: WorkingSet, block: Step, statement: StatementPlan) -> None:
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


def create_step(work: WorkingSet, block: Step, statement: StatementPlan) -> Step:
    """Create the row of a statement; below the foreach, if it stands for an item of it."""
    path = f"{block.path}.{statement.name}"
    kind, parent, index = statement.kind.value, block, statement.index
    if block.is_virtual:
        work.unwritten[row_key(RowKind.STEP, path)] = block
        parent, index = work.parent(block), block.index
    step = work.create(RowKind.STEP, path, kind, statement.address, parent, index)
    step.facet_name = statement.target
    return step

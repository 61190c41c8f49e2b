"""Propagate the end of a row to the rows that wait for it.

The end of a step touches the counter of its block and the rows at its edges, and no other row,
however large the run is.
"""

from __future__ import annotations

from flowengine.evaluator import cancellation, deadlines, function_calls
from flowengine.evaluator.failures import is_skipped_by_hand, note_failure
from flowengine.evaluator.records import Step, row_key
from flowengine.evaluator.states import ObjectType, RunState, Signal, StepState, next_run_state
from flowengine.evaluator.steps import create_step
from flowengine.evaluator.working_set import WorkingSet
from flowengine.program.addresses import Base
from flowengine.program.plan import Edge, EdgeKind

#: Of a renewed row: it has not counted the rows below yet, and does when it creates them.
_NOT_COUNTED = frozenset(
    {StepState.CREATED, StepState.BLOCKS_BEGIN, StepState.CATCH_BEGIN, StepState.ALWAYS_BEGIN}
)


def ended(work: WorkingSet, row: Step) -> None:
    """Count down the rows that wait for the end of this row."""
    if row.object_type == ObjectType.WORKFLOW:
        _end_run(work, row)
        return
    if row.object_type == ObjectType.FUNCTION_CALL:
        function_calls.ended(work, row)
        return
    parent, created = work.parent(row), 0
    if row.object_type not in ObjectType.BLOCKS:
        if work.plan.has_deadlines:
            deadlines.end_timer(work, row)
        for edge in work.statement(row).edges:
            created += _follow(work, row, parent, edge)
    _count_down(work, parent, row, created)


def _end_run(work: WorkingSet, root: Step) -> None:
    run = work.run
    run.alarm = None
    deadlines.end_run_timer(work, root)
    if run.state == RunState.CANCELLING:
        cancellation.end_run(work, root)
        return
    has_completed = root.state == StepState.COMPLETE
    run.state = next_run_state(run.id, run.state, Signal.ADVANCE if has_completed else Signal.FAIL)
    if has_completed:
        run.outputs = root.returns
    else:
        run.error = root.error


def _count_down(work: WorkingSet, parent: Step, child: Step, created: int) -> None:
    """Count down a child, and add the children that its end has created.

    In a chain each step creates the next: the block's counter stays the same, and its row is
    written only at the beginning and the end.
    """
    if parent.state in _NOT_COUNTED:
        return
    if parent.object_type == ObjectType.FAN and child.index >= parent.next_index:
        return  # a renewed foreach counts this item when it gets there
    is_noted = child.has_failed and _is_noted(work, parent, child)
    if is_noted:
        note_failure(parent, child, work.limits)
    if is_noted or created != 1:
        parent.remaining += created - 1
        work.touch(parent)
    if parent.remaining == 0 or parent.is_held_back:
        work.queue.append(parent)


def _is_noted(work: WorkingSet, parent: Step, failed: Step) -> bool:
    """Whether the failure of a child is a failure of its parent."""
    is_cancelled = failed.state == StepState.CANCELLED
    return (is_cancelled or not _is_collected(work, parent)) and not is_skipped_by_hand(failed)


def _is_collected(work: WorkingSet, parent: Step) -> bool:
    """Whether a row is a foreach that reports its failed items."""
    if parent.object_type != ObjectType.FAN:
        return False
    foreach = work.block(parent).foreach
    return foreach is not None and foreach.collects_errors


def _follow(work: WorkingSet, step: Step, block: Step, edge: Edge) -> int:
    """Count down one waiting row; return the number of rows this added to the step's block."""
    if edge.sibling is not None and edge.sibling.is_lazy:
        # Its row is created here, once: a step ends once.
        waiting = create_step(work, block, edge.sibling)
        if waiting.key in work.adopted:
            return 1
        if step.has_failed and edge.kind is EdgeKind.NEEDS:
            work.skip(waiting, step)
        else:
            work.queue.append(waiting)
        return 1
    base = block.path
    if edge.row.base is Base.CONTAINER:
        base = base.removesuffix(work.block(block).segment)
    found = work.find(row_key(edge.row.kind, base + edge.row.suffix))
    if found is None or found.is_final:
        return 0  # not created: it will read this end when it begins
    if step.key in work.settled and (
        edge.sibling is None
        or found.generation != work.run.generation
        or found.state != StepState.CREATED
    ):
        # This end was counted: by an earlier generation, when the row was created, or when it was
        # renewed with a later stage to go on from.
        return 0
    if edge.kind is EdgeKind.CAPTURES:
        if found.state != StepState.CREATED:
            found.remaining -= 1
            work.touch(found)
            if found.remaining == 0:
                work.queue.append(found)
    elif found.waiting == 0:
        return 0  # a renewed row: the steps that it waited for have ended before
    elif edge.kind is EdgeKind.NEEDS and step.has_failed:
        work.skip(found, step)
    else:
        found.waiting -= 1
        work.touch(found)
        if found.waiting == 0:
            work.queue.append(found)
    return 0

"""The handlers of a block, a foreach block, an item and a case in each of their states."""

from __future__ import annotations

from flowengine.evaluator import foreach_expansion, scripts, when
from flowengine.evaluator.failures import StepSkipped
from flowengine.evaluator.foreach_items import yielded
from flowengine.evaluator.records import Step, row_key
from flowengine.evaluator.scope import source_key
from flowengine.evaluator.states import ObjectType, Signal
from flowengine.evaluator.steps import children_ended, create_statement, has_ended
from flowengine.evaluator.working_set import WorkingSet
from flowengine.program.addresses import RowKind


def begin(work: WorkingSet, row: Step) -> Signal:
    """Create the steps that can begin, or count the items of a foreach."""
    plan = work.block(row)
    if row.object_type == ObjectType.FAN:
        return foreach_expansion.begin(work, row, plan)
    if row.object_type == ObjectType.WHEN:
        return when.choose(work, row, plan)
    waiting_for = [source_key(work, row, source) for source in plan.captures]
    work.want(waiting_for)
    awaited = sum(1 for key in waiting_for if not has_ended(work, key))
    begun = [statement for statement in plan.statements if not statement.is_lazy]
    row.remaining = len(begun) + awaited
    for statement in begun:
        create_statement(work, row, statement)
    return Signal.ADVANCE


def go_on(work: WorkingSet, row: Step) -> Signal | None:
    """Begin further items, and advance when all children have ended."""
    if row.object_type == ObjectType.FAN:
        return foreach_expansion.go_on(work, row)
    return children_ended(row)


def yield_values(work: WorkingSet, row: Step) -> Signal:
    """Evaluate the yields: every step that they name has ended."""
    plan = work.block(row)
    if row.object_type == ObjectType.FAN:
        return Signal.ADVANCE  # its items yield; its container reads them in item order
    if row.object_type == ObjectType.WHEN:
        return when.capture(work, row, plan)
    if plan.is_script:
        script = row_key(RowKind.STEP, f"{row.path}.script")
        row.yields = [(0, scripts.result_of(work, script))]
        return Signal.ADVANCE
    outside = [source_key(work, row, source) for source in plan.captures]
    carriers = [row_key(RowKind.STEP, f"{row.path}.{s.name}") for s in plan.carriers]
    work.want([*outside, *carriers])
    for key in outside:
        if work.get(key).has_failed:
            raise StepSkipped(work.get(key))
    row.yields = [entry for key in carriers for entry in work.get(key).yields]
    if plan.yields:
        row.yields += yielded(work, row, plan, row.path)
    return Signal.ADVANCE

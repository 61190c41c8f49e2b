"""Prefetch: ask at once for the rows that inputs to the evaluator will need.

Read sets come from the linker; here they are instantiated for the rows of a run. Without them
an evaluation would stop at one missing row after the other. They decide nothing: a surplus row
costs its loading, a row that is absent costs one more round trip.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from flowengine.evaluator.call_statements import call_key
from flowengine.evaluator.records import Step, row_key
from flowengine.evaluator.rows_above import rows_above
from flowengine.evaluator.scope import source_key
from flowengine.evaluator.states import ObjectType, StepState
from flowengine.evaluator.triggers import (
    ActivationEnded,
    CancelSteps,
    RanAhead,
    Report,
    Started,
    Trigger,
)
from flowengine.evaluator.working_set import Missing, WorkingSet
from flowengine.evaluator.yields import item_keys
from flowengine.program.addresses import Base, RowAddress
from flowengine.program.plan import BlockPlan, StatementPlan

#: Rows above that are asked for at first, and then as a multiple of the rows that are loaded:
#: a nesting of any depth is loaded in a few rounds, with few surplus rows.
_NEAR, _FURTHER = 6, 16


def prefetch(work: WorkingSet, triggers: Sequence[Trigger]) -> None:
    """Want every row that the inputs concern."""
    keys = [t.step_key for t in triggers if not isinstance(t, Started) and t.step_key]
    suspended: set[str] = set()  # functions that go on waiting: nothing above them is read
    for trigger in triggers:
        if isinstance(trigger, CancelSteps):
            keys += [work.root_key, *work.at_event(trigger.after)]
        elif isinstance(trigger, Report | RanAhead):
            report = trigger.outcome if isinstance(trigger, Report) else trigger.report
            if isinstance(report, ActivationEnded):
                keys += _cancelled_calls(work, trigger.step_key, report)
                if report.ended is None:
                    suspended.add(trigger.step_key)
    if work.plan.has_recursion and keys:
        work.want([work.root_key, *keys])
    work.want(keys)
    rows = [row for key in keys if key not in suspended and (row := work.look(key)) is not None]
    if ObjectType.MAILBOX in [row.object_type for row in rows]:
        rows = _with_waiting_steps(work, rows)
    above: set[str] = set()
    waiting: dict[str, int] = {}
    for row in rows:
        read_set = work.plan_of(row).read_set
        if row.parent not in above or read_set.levels > 2:
            above.update(_above(work, row, read_set.levels))
        if read_set.waiting:
            for key in _addressed(work, row, read_set.waiting):
                waiting[key] = waiting.get(key, 0) + 1
    work.want(above.union(waiting))
    # A foreach that has further items to begin does not end now.
    ending = [row for row in rows if row.object_type not in ObjectType.BLOCKS]
    keys_read = read_by_ends(work, ending)
    for key, count in waiting.items():
        keys_read.update(_read_at_begin(work, key, count))
    if keys_read:
        work.want(keys_read)


def _cancelled_calls(work: WorkingSet, key: str, report: ActivationEnded) -> list[str]:
    """Return the stored calls that an activation cancels."""
    if not report.cancelled:
        return []
    work.want([key])
    function, new = work.look(key), {call.number for call in report.calls}
    if function is None:
        return []
    return [call_key(function.path, one) for one in report.cancelled if one not in new]


def _with_waiting_steps(work: WorkingSet, rows: Sequence[Step]) -> list[Step]:
    """Replace each mailbox by the step that waits at it, if any."""
    keys = [
        row.params.get("step") if row.object_type == ObjectType.MAILBOX else row.key for row in rows
    ]
    named = [key for key in keys if key is not None]
    work.want(named)
    return [row for key in named if (row := work.look(key)) is not None]


def read_by_ends(work: WorkingSet, rows: Iterable[Step]) -> set[str]:
    """Return the rows that are read if these rows end, and with them the rows above.

    Facets that call each other, or themselves, end one inside the other: found one by one, a
    nesting of two hundred levels would be evaluated two hundred times.
    """
    keys: set[str] = set()
    while rows:
        ended: dict[str, list[Step]] = {}
        for row in rows:
            if row.parent is not None and _may_end(work, row):
                ended.setdefault(row.parent, []).append(row)
        rows = []
        for key, children in ended.items():
            if not work.knows(key):
                further = _NEAR if work.loaded <= _NEAR else _FURTHER * work.loaded
                keys.update(_above(work, children[0], further))
                continue
            parent = work.look(key)
            if parent is not None and parent.remaining <= len(children):
                rows.append(parent)
                try:
                    keys.update(_read_at_end(work, parent))
                except Missing as missing:
                    keys |= missing.steps
    return keys


def _read_at_begin(work: WorkingSet, key: str, count: int) -> list[str]:
    """Return the steps that a waiting step reads, if `count` ends let it begin."""
    row = work.look(key)
    if row is None or row.parent is None or row.waiting > count or row.is_final:
        return []
    plan, block = work.plan_of(row), work.look(row.parent)
    if not isinstance(plan, StatementPlan) or block is None:
        return []
    return [source_key(work, block, source) for source in plan.sources.steps.values()]


def _may_end(work: WorkingSet, row: Step) -> bool:
    """Whether a step whose event or body completes ends then, and its end begins no other."""
    plan = work.plan_of(row)
    if isinstance(plan, BlockPlan):
        return row.next_index >= row.item_count  # of a foreach: it has no further items to begin
    has_body = bool(plan.body) and row.state == StepState.EVENT_TRANSMIT
    return plan.read_set.is_last and not has_body


def _read_at_end(work: WorkingSet, row: Step) -> Iterator[str]:
    plan = work.plan_of(row)
    if row.object_type == ObjectType.FAN:
        return  # its items are read by the step whose body it is part of
    yield from _addressed(work, row, plan.read_set.captured)
    if isinstance(plan, BlockPlan):
        for source in (*plan.captures, *plan.yield_sources.steps.values()):
            if source.hops:
                yield source_key(work, row, source)
        return
    # The rows that its end touches: those above it, and those that wait for it.
    yield from _above(work, row, plan.read_set.levels)
    yield from _addressed(work, row, plan.read_set.waiting)
    for block in plan.body:
        key = row_key(block.kind, row.path + block.segment)
        fan = work.look(key) if block.foreach and work.knows(key) else None
        if fan is not None:
            yield from item_keys(block, fan.path, range(fan.item_count))


def _above(work: WorkingSet, row: Step, levels: int) -> list[str]:
    """The nearest rows above: by parent links as far as they are loaded, then by the path."""
    keys: list[str] = []
    above: Step | None = row
    while above is not None and above.parent is not None and len(keys) < levels:
        if not work.knows(above.parent):
            keys += islice(rows_above(work.plan, work.root_plan, above), levels - len(keys))
            break
        keys.append(above.parent)
        above = work.look(above.parent)
    return keys


def _addressed(work: WorkingSet, row: Step, addresses: Sequence[RowAddress]) -> Iterator[str]:
    if not addresses:
        return
    paths = {Base.OWN: row.path}
    if row.object_type not in ObjectType.BLOCKS and row.parent is not None:
        statement = work.statement(row)
        block = row.path.removesuffix(f".{statement.name}")
        # The foreach block of an item ``path[7]`` is ``path``.
        around = block.rpartition("[")[0] if statement.block.foreach is not None else block
        paths[Base.BLOCK] = block
        paths[Base.CONTAINER] = around.removesuffix(statement.block.segment)
    for address in addresses:
        yield row_key(address.kind, paths[address.base] + address.suffix)

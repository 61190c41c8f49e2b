"""Ask at once for the rows that the happenings will concern.

Without this every answer would be found out one miss at a time. It decides nothing: a
row asked for in vain costs its loading, a row forgotten costs one more round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

from flowengine.evaluator import paths
from flowengine.evaluator.foreach_items import item_keys
from flowengine.evaluator.records import Step, row_key
from flowengine.evaluator.scope import source_key
from flowengine.evaluator.states import ObjectType, StepState
from flowengine.evaluator.steps import plan_of
from flowengine.evaluator.triggers import Started, Trigger
from flowengine.evaluator.working_set import Missing, WorkingSet
from flowengine.program.plan import RowKind, StatementPlan


def prefetch(work: WorkingSet, triggers: Sequence[Trigger]) -> None:
    """Want every row that the happenings concern directly."""
    keys = [h.step_key for h in triggers if not isinstance(h, Started)]
    work.want(keys)
    rows = [row for key in keys if (row := work.look(key)) is not None]
    work.want(key for row in rows for key in _concerned(work, row))
    _foresee_ends(work, rows)
    _foresee_way_up(work, rows)


def _foresee_ends(work: WorkingSet, rows: Sequence[Step]) -> None:
    """Want what the end of a foreach reads, if it may end now: all its items at once.

    Found out only then, thousands of answers would have been taken in for nothing.
    """
    if len(rows) == 1:
        return
    ending: dict[str, int] = {}
    for row in rows:
        key = row.parent
        above = work.look(key) if key is not None else None
        if above is not None and above.object_type == ObjectType.ITEM:
            key = above.parent
        if key is not None:
            ending[key] = ending.get(key, 0) + 1
    for key, count in ending.items():
        fan = work.look(key)
        if fan is None or fan.object_type != ObjectType.FAN or fan.remaining > count:
            continue
        items = item_keys(work.block(fan), fan.path, fan.item_count)
        work.want([*items, *_concerned(work, work.parent(fan))])


#: So many rows of the way up are asked for at first, and then so many times what is known: a
#: way of any length is known after a few rounds, and few rows are asked for in vain.
_NEAR, _FURTHER = 6, 16


def _foresee_way_up(work: WorkingSet, rows: Sequence[Step]) -> None:
    """Want every row on the way up that may end now, and what it reads when it ends.

    Facets that call each other, or themselves, end one inside the other. Found out one by
    one, a nesting of two hundred would be evaluated two hundred times.
    """
    together = Counter(row.parent for row in rows) if len(rows) > 1 else {}
    lacking: set[str] = set()
    ending: dict[str, Step] = {}
    for row in rows:
        if row.parent is None or row.parent in ending:
            continue
        at, most = row, together.get(row.parent, 1)
        while at.parent is not None:
            if not work.knows(at.parent):
                above = paths.above(at.path)
                lacking.update(
                    islice(above, _NEAR if work.known <= _NEAR else _FURTHER * work.known)
                )
                break
            up = work.look(at.parent)
            if up is None or up.remaining > most or _goes_on(work, at):
                break
            ending[up.key] = up
            at, most = up, 1
    if lacking:
        work.want(lacking)
    if ending:
        work.want([key for row in ending.values() for key in _read_at_end(work, row)])


def lacking_above(work: WorkingSet, row: Step) -> set[str]:
    """The rows that will be missed further up, if the end of this row ends those above it.

    For a row that could not be foreseen, because it came to be in this evaluation.
    """
    try:
        _foresee_way_up(work, [row])
    except Missing as missing:
        return missing.steps
    return set()


def _goes_on(work: WorkingSet, row: Step) -> bool:
    """Whether a step that gets its answer, or whose body ends, has more to do than to end.

    Or its end brings the next step of its block, which then does not end.
    """
    if row.object_type in ObjectType.BLOCKS:
        return False
    plan = plan_of(work, row)
    if isinstance(plan, StatementPlan) and plan.opens:
        return True
    return plan.always is not None or (
        row.state == StepState.EVENT_TRANSMIT and plan.body is not None
    )


def _read_at_end(work: WorkingSet, row: Step) -> Iterator[str]:
    """The rows that a row reads, or tells, when it ends."""
    if row.object_type not in ObjectType.BLOCKS:
        body = plan_of(work, row).body
        for block in body.blocks if body else ():
            yield row_key(block.kind, row.path + block.segment)
        yield from _concerned(work, row)
        return
    if row.object_type == ObjectType.FAN:
        return  # its items are many: they are asked for when it ends
    plan = work.block(row)
    if plan.choice is not None:
        container = row.path.removesuffix(plan.segment)
        for case in plan.choice.cases:
            yield row_key(RowKind.CASE, container + case.segment)
        return
    for source in (*plan.captures, *plan.yield_sources.steps.values()):
        yield source_key(work, row, source)
    for statement in plan.carriers:
        yield row_key(RowKind.STEP, f"{row.path}.{statement.name}")


def _concerned(work: WorkingSet, row: Step) -> Iterator[str]:
    """The rows around a step: its block, its container, and those that wait for it."""
    if row.parent is not None:
        yield row.parent
    if row.object_type != ObjectType.CALL:
        return
    statement = work.statement(row)
    block = row.path.removesuffix(f".{statement.name}")
    is_item = statement.block.foreach is not None
    # Of an item ``path[7]`` the foreach block is ``path``.
    around = block.rpartition("[")[0] if is_item else block
    container = around.removesuffix(statement.block.segment)
    yield row_key(RowKind.STEP, container)
    if is_item:
        yield row_key(RowKind.FAN, around)
    if statement.block.when is not None:
        yield row_key(RowKind.WHEN, container + statement.block.when.segment)
    for edge in statement.edges:
        if edge.sibling is None or not edge.sibling.is_lazy:
            yield row_key(edge.kind, (container if edge.from_container else block) + edge.suffix)

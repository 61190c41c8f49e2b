"""Ask at once for the rows that the happenings will concern.

Without this every answer would be found out one miss at a time. It decides nothing: a
row asked for in vain costs its loading, a row forgotten costs one more round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flowengine.evaluator.happenings import Happening, Started
from flowengine.evaluator.records import Step, row_key
from flowengine.evaluator.states import ObjectType
from flowengine.evaluator.work import Work
from flowengine.program.plan import RowKind


def foresee(work: Work, happenings: Sequence[Happening]) -> None:
    """Want every row that the happenings concern directly."""
    keys = [h.step_key for h in happenings if not isinstance(h, Started)]
    work.want(keys)
    rows = [row for key in keys if (row := work.find(key)) is not None]
    work.want(key for row in rows for key in _concerned(work, row))
    _foresee_ends(work, rows)


def _foresee_ends(work: Work, rows: Sequence[Step]) -> None:
    """Want what the end of a foreach reads, if it may end now: all its items at once.

    Found out only then, thousands of answers would have been taken in for nothing.
    """
    if len(rows) == 1:
        return
    ending: dict[str, int] = {}
    for row in rows:
        item = work.find(row.parent) if row.parent is not None else None
        if item is not None and item.object_type == ObjectType.ITEM and item.parent is not None:
            ending[item.parent] = ending.get(item.parent, 0) + 1
    for key, count in ending.items():
        fan = work.find(key)
        if fan is None or fan.remaining > count:
            continue
        items = (row_key(RowKind.ITEM, f"{fan.path}[{i}]") for i in range(fan.item_count))
        work.want([*items, *_concerned(work, work.parent(fan))])


def _concerned(work: Work, row: Step) -> Iterator[str]:
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

"""The rows above a row, read off its path and the plan, without loading them.

A path is read from its end: the cost follows the number of rows that are asked for, not the depth
of the row. The plan gives the statements that call a facet; the name at the end of the path leaves
those of that name, mostly one. If several remain, the rows of all of them are returned: a key
without a row costs its lookup, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from flowengine.evaluator.records import Step, row_key
from flowengine.evaluator.states import ObjectType
from flowengine.program.addresses import RowKind
from flowengine.program.plan import BlockPlan, FacetPlan, Plan, StatementKind, StatementPlan

_Row = tuple[RowKind, int]  #: a row on a path: its kind, and the end of its path
_Call = tuple[StatementPlan, int]  #: a step on a path: a statement that it may be, and its end


def rows_above(plan: Plan, root: FacetPlan, row: Step) -> Iterator[str]:
    """Yield the keys of the rows above a row, the nearest first, up to the root step."""
    if row.object_type == ObjectType.FUNCTION_CALL:  # its path ends with no name of the program
        assert row.parent is not None
        yield row.parent
        return
    path, top = row.path, len(root.short_name)
    if row.object_type in ObjectType.BLOCKS:
        rows, owner, end = _around_block(plan.blocks[row.address], row)
        levels = [(rows, owner, end)]
    elif row.parent is not None:
        levels = [_around(plan.statements[row.address], path, len(path))]
    else:
        levels = []
    while levels:
        found: dict[_Row, None] = {}
        calls: list[_Call] = []
        for rows, owner, end in levels:
            steps = [s for s in _owners(plan, owner) if path.endswith(_ending(s), 0, end)]
            calls += [(statement, end) for statement in steps]
            if steps or (owner == root.name and end == top):
                found |= dict.fromkeys([*rows, (RowKind.STEP, end)])
        for kind, end in found:
            yield row_key(kind, path[:end])
        levels = [_around(statement, path, end) for statement, end in calls if end > top]


_Level = tuple[list[_Row], str, int]


def _around(statement: StatementPlan, path: str, end: int) -> _Level:
    """Return the rows between a step and the one whose body it is part of, nearest first.

    And the address of the owner of that body, and the end of the owner's path.
    """
    end -= len(_ending(statement))
    if statement.kind in _BEFORE_THE_BODY:
        return [], _owner(statement.address), end
    block = statement.block
    rows: list[_Row] = []
    if block.foreach is not None:
        if block.foreach.single_call is None:
            rows.append((RowKind.ITEM, end))
        end = path.rfind("[", 0, end)
    elif block.when is not None:
        rows.append((RowKind.CASE, end))
        end -= len(block.segment) - len(block.when.segment)
        block = block.when
    rows.append((block.kind, end))
    return rows, _owner(block.address), end - len(block.segment)


def _around_block(block: BlockPlan, row: Step) -> _Level:
    end, rows = len(row.path), []
    if row.object_type == ObjectType.ITEM:
        end = row.path.rfind("[")
        rows = [(RowKind.FAN, end)]
    elif block.when is not None:
        end -= len(block.segment) - len(block.when.segment)
        block = block.when
        rows = [(RowKind.WHEN, end)]
    return rows, _owner(block.address), end - len(block.segment)


#: Their steps stand below their owner without a block.
_BEFORE_THE_BODY = (StatementKind.MIXIN, StatementKind.SCRIPT)


def _ending(statement: StatementPlan) -> str:
    """Return the end of the path of each step of a statement."""
    if statement.kind is StatementKind.MIXIN:
        return f"[with-{statement.name}]"
    return "[script]" if statement.kind is StatementKind.SCRIPT else f".{statement.name}"


def _owner(address: str) -> str:
    """Return the address of the statement, or the name of the facet, that a block belongs to."""
    return address.rpartition("/")[0]


def _owners(plan: Plan, address: str) -> list[StatementPlan]:
    """Return the statements whose steps have the blocks of that owner."""
    statement = plan.statements.get(address)
    return plan.callers.get(address, []) if statement is None else [statement]

"""The outline of a run: all its rows, each with a few short columns.

An ordinary trigger reads the rows that it changes. A retry has to know the whole tree: which rows
depend on a step, and which have failed. It reads no values, so a run of 250,000 rows (the default
of `max_run_steps`) takes some hundred megabytes for the time of one decision.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from flowengine.evaluator.records import Step, row_key
from flowengine.evaluator.states import ObjectType, StepState
from flowengine.program.addresses import Base, RowKind, StepSource
from flowengine.program.plan import EdgeKind, Plan


class OutlineRow(NamedTuple):
    """A row without its values."""

    id: str
    key: str
    parent: str | None
    path: str
    object_type: str
    address: str
    facet_name: str
    position: int
    state: str
    generation: int
    item_count: int

    @property
    def is_final(self) -> bool:
        return self.state in StepState.FINAL

    @property
    def has_failed(self) -> bool:
        return self.is_final and self.state != StepState.COMPLETE

    @property
    def is_block(self) -> bool:
        return self.object_type in ObjectType.BLOCKS

    @property
    def is_function_call(self) -> bool:
        return self.object_type == ObjectType.FUNCTION_CALL


def outlined(step: Step) -> OutlineRow:
    return OutlineRow(
        id=step.id,
        key=step.key,
        parent=step.parent,
        path=step.path,
        object_type=step.object_type,
        address=step.address,
        facet_name=step.facet_name,
        position=step.index,
        state=step.state,
        generation=step.generation,
        item_count=step.item_count,
    )


class Outline:
    """The rows of a run that are not superseded, as a tree; without mailboxes."""

    def __init__(self, rows: Iterable[OutlineRow]) -> None:
        self.rows = {row.key: row for row in rows if row.object_type != ObjectType.MAILBOX}
        self._children: defaultdict[str, list[OutlineRow]] = defaultdict(list)
        for row in self.rows.values():
            if row.parent is not None:
                self._children[row.parent].append(row)

    def children(self, key: str) -> list[OutlineRow]:
        return self._children.get(key, [])

    def below(self, key: str) -> Iterator[OutlineRow]:
        """Yield all rows below a row."""
        pending = list(self.children(key))
        while pending:
            row = pending.pop()
            yield row
            pending += self.children(row.key)

    def dependents(self, plan: Plan, row: OutlineRow) -> Iterator[tuple[EdgeKind, OutlineRow]]:
        """Yield the rows at the edges of a step, as `propagation` follows them at its end."""
        if row.is_block or row.parent is None:
            return
        block, statement = self.rows[row.parent], plan.statements.get(row.address)
        for edge in statement.edges if statement is not None else ():
            base = block.path
            if edge.row.base is Base.CONTAINER and block.address in plan.blocks:
                base = base.removesuffix(plan.blocks[block.address].segment)
            found = self.rows.get(row_key(edge.row.kind, base + edge.row.suffix))
            if found is not None:
                yield edge.kind, found

    def awaited(self, plan: Plan, row: OutlineRow) -> Iterator[tuple[str, bool]]:
        """Yield the keys of the steps that a row waits for, and whether they are in its block.

        A row that is created by the end of the only step it waits for has none.
        """
        if row.parent is None or row.object_type in _UNORDERED:
            return
        if row.is_block:
            block = plan.blocks[row.address]
            sources = (*block.needs, *block.awaits)
        else:
            statement = plan.statements[row.address]
            sources = () if statement.is_lazy else statement.needs + statement.awaits
        for source in sources:
            is_beside = not row.is_block and source.hops == 0
            yield self._source_key(self.rows[row.parent], source), is_beside

    def _source_key(self, scope: OutlineRow, source: StepSource) -> str:
        for _ in range(source.hops):
            assert scope.parent is not None
            scope = self.rows[scope.parent]
        if source.suffix is None:
            return scope.key
        return row_key(RowKind.STEP, scope.path + source.suffix)


#: Rows that begin with the row above them.
_UNORDERED = frozenset(
    {ObjectType.BLOCK, ObjectType.ITEM, ObjectType.CASE, ObjectType.MIXIN, ObjectType.SCRIPT}
    | {ObjectType.FUNCTION_CALL}
)

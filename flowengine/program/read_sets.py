"""Derive the read set of every statement and block from the linked program."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from flowengine.program.addresses import Base, ReadSet, RowAddress, RowKind
from flowengine.program.nodes import FacetKind
from flowengine.program.plan import BlockPlan, Body, Plan, StatementKind, StatementPlan

#: Statements of a chain without events that a read set looks ahead: linking stays linear.
_CHAIN = 8


def add_read_sets(plan: Plan) -> None:
    """Add the read sets to a plan whose edges are complete."""
    for block in plan.blocks.values():
        block.read_set = ReadSet(captured=tuple(dict.fromkeys(_yielding(block))))
    for facet in plan.facets.values():
        facet.read_set = ReadSet(captured=_blocks(facet.body))
    for statement in plan.statements.values():
        next_statements = list(islice(_next(statement), _CHAIN))
        statement.read_set = ReadSet(
            captured=_blocks(statement.body),
            waiting=tuple(dict.fromkeys(_waiting(statement, next_statements))),
            levels=max(_to_container(statement), *map(_levels_read, next_statements), 1),
            is_last=not next_statements and not statement.always,
        )


def _blocks(body: Body) -> tuple[RowAddress, ...]:
    return tuple(RowAddress(Base.OWN, block.segment, block.kind) for block in body)


def _yielding(block: BlockPlan) -> Iterator[RowAddress]:
    """The rows below a block that it reads for its yields."""
    for case in block.choice.cases if block.choice else ():
        yield RowAddress(Base.OWN, case.segment.removeprefix(block.segment), RowKind.CASE)
    for statement in block.statements if block.is_script else block.carriers:
        yield RowAddress(Base.OWN, f".{statement.name}", RowKind.STEP)
    for source in block.yield_sources.steps.values():
        if source.hops == 0 and source.suffix is not None:
            yield RowAddress(Base.OWN, source.suffix, RowKind.STEP)


def _next(statement: StatementPlan) -> Iterator[StatementPlan]:
    """The statements of its block that begin when it ends, and those after them in a chain.

    The chain continues as long as its statements end at once, without an event.
    """
    chain = [statement]
    while chain:
        for edge in chain.pop().edges:
            if edge.sibling is not None and edge.sibling.is_lazy:
                yield edge.sibling
                if _ends_at_once(edge.sibling):
                    chain.append(edge.sibling)


def _ends_at_once(statement: StatementPlan) -> bool:
    if statement.kind is not StatementKind.CALL:
        return True
    is_event = statement.facet is not None and statement.facet.kind is FacetKind.EVENT
    return not (is_event or statement.body or statement.mixins or statement.pre_script)


def _waiting(statement: StatementPlan, following: list[StatementPlan]) -> Iterator[RowAddress]:
    for ending in (statement, *filter(_ends_at_once, following)):
        for edge in ending.edges:
            if edge.sibling is None or not edge.sibling.is_lazy:
                yield edge.row


def _to_container(statement: StatementPlan) -> int:
    """The parent links from a statement's row to the step whose body it is part of."""
    block = statement.block
    is_nested = block.when or (block.foreach and block.foreach.single_call is None)
    return 3 if is_nested else 2


def _levels_read(statement: StatementPlan) -> int:
    """The parent links from a step of a block to the furthest row that its arguments read."""
    return 1 + max(statement.sources.inputs.values(), default=0)

"""Find the place in the text that a problem of a program is about.

The linker says where in words, ``shop.Order, block 1, step 'charge'``: declarations, blocks
and steps, from the outside inwards. The same words lead down a tree of places. What has no
place of its own, as an argument, is passed over: the innermost place known is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from flowengine.errors import InvalidProgram, Problem
from flowengine.program.nodes import (
    Block,
    CatchClause,
    Declaration,
    FacetDeclaration,
    ImplicitDeclaration,
    Location,
    LogStatement,
    Namespace,
    Program,
    SchemaDeclaration,
    Statement,
    StepStatement,
    WhenCase,
    YieldStatement,
)

_Located: TypeAlias = FacetDeclaration | SchemaDeclaration | ImplicitDeclaration


@dataclass(slots=True)
class _Place:
    location: Location | None
    inside: dict[str, _Place] = field(default_factory=dict)

    def put(self, word: str, location: Location | None) -> _Place:
        """The place of that name in here: the first one, when there are several."""
        return self.inside.setdefault(word, _Place(location))


def located(problems: InvalidProgram, program: Program, file: str) -> InvalidProgram:
    """The same problems, each with its line and column."""
    root = _places(program)
    return InvalidProgram([_located(problem, root, file) for problem in problems.problems])


def _located(problem: Problem, root: _Place, file: str) -> Problem:
    place, location = root, None
    for word in (*problem.where.split(", "), problem.what.partition(",")[0]):
        place = place.inside.get(word, place)
        location = place.location or location
    if location is None:
        return replace(problem, where=", ".join(filter(None, (file, problem.where))))
    at = f"{location.line}:{location.column}"
    at = f"{file}:{at}" if file else f"line {location.line}, column {location.column}"
    return replace(problem, where=", ".join(filter(None, (at, problem.where))))


def _places(program: Program) -> _Place:
    root = _Place(None)
    for name, declared in _named(program.declarations):
        place = root.put(name, declared.location)
        if isinstance(declared, FacetDeclaration):
            _body(place, declared.body)
            _catch(place, declared.catch)
    return root


def _named(
    declarations: Iterable[Declaration], namespace: str = ""
) -> Iterator[tuple[str, _Located]]:
    for declared in declarations:
        name = f"{namespace}.{declared.name}" if namespace else declared.name
        if isinstance(declared, Namespace):
            yield from _named(declared.declarations, name)
        else:
            yield name, declared


def _body(container: _Place, blocks: tuple[Block, ...]) -> None:
    for index, block in enumerate(blocks):
        place = container
        if len(blocks) > 1:
            place = container.put(f"block {index}", block.location)
        if block.foreach is not None:
            place.put("foreach", block.location)
        _cases(place, block.cases)
        _statements(place, block.statements, block.yields)


def _catch(container: _Place, catch: CatchClause | None) -> None:
    if catch is not None:
        first = next((s.location for s in (*catch.statements, *catch.yields)), None)
        place = container.put("catch", first)
        _cases(place, catch.cases)
        _statements(place, catch.statements, catch.yields)


def _cases(container: _Place, cases: tuple[WhenCase, ...]) -> None:
    for index, case in enumerate(cases):
        first = next((s.location for s in (*case.statements, *case.yields)), None)
        _statements(container.put(f"case {index}", first), case.statements, case.yields)
        _statements(container, case.statements, case.yields)


def _statements(
    container: _Place, statements: tuple[Statement, ...], yields: tuple[YieldStatement, ...]
) -> None:
    spoken: dict[str, int] = {}
    for statement in statements:
        if isinstance(statement, StepStatement):
            place = container.put(f"step {statement.name!r}", statement.location)
            _body(place, statement.body)
            _catch(place, statement.catch)
            continue
        word = "sys.log" if isinstance(statement, LogStatement) else "sys.assert"
        spoken[word] = spoken.get(word, 0) + 1
        name = word if spoken[word] == 1 else f"{word}_{spoken[word]}"
        container.put(f"step {name!r}", statement.location)
    for one in yields:
        container.put("yield", one.location)
        container.put(f"yields to {one.call.target!r}", one.location)

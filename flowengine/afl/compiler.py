"""Compile AFL text: parse it, resolve its names, and locate its problems in the text.

The linker names a place in words, ``shop.Order, block 1, step 'charge'``: declarations, blocks
and steps, outermost first. The same words address a tree of positions. Parts without a
position, such as arguments, are skipped: the innermost known position is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from flowengine.afl.parser import read_text
from flowengine.errors import InvalidProgram, Problem
from flowengine.program import link_program, nodes, parse_program

_Declared: TypeAlias = nodes.FacetDeclaration | nodes.SchemaDeclaration | nodes.ImplicitDeclaration


def compile_text(text: str | bytes, file: str = "") -> nodes.Program:
    """Compile a text to a linked program.

    `file` names the text in errors. Raises InvalidText for a syntax error, and
    InvalidProgram with all problems of the program, each with line and column.
    """
    return checked(read_text(text, file), file)


def checked(document: nodes.Json, file: str = "") -> nodes.Program:
    """Link program JSON parsed from a text; raises InvalidProgram."""
    program = parse_program(document)
    try:
        link_program(program)
    except InvalidProgram as problems:
        raise with_positions(problems, program, file) from None
    return program


@dataclass(slots=True)
class _Position:
    location: nodes.Location | None
    inside: dict[str, _Position] = field(default_factory=dict)

    def child(self, word: str, location: nodes.Location | None) -> _Position:
        """Return the child of that name; the first one, if there are several."""
        return self.inside.setdefault(word, _Position(location))


def with_positions(problems: InvalidProgram, program: nodes.Program, file: str) -> InvalidProgram:
    """Return the problems with line and column."""
    root = _positions(program)
    return InvalidProgram([_with_position(problem, root, file) for problem in problems.problems])


def _with_position(problem: Problem, root: _Position, file: str) -> Problem:
    place, location = root, None
    for word in (*problem.where.split(", "), problem.what.partition(",")[0]):
        place = place.inside.get(word, place)
        location = place.location or location
    if location is None:
        return replace(problem, where=", ".join(filter(None, (file, problem.where))))
    at = f"{location.line}:{location.column}"
    at = f"{file}:{at}" if file else f"line {location.line}, column {location.column}"
    return replace(problem, where=", ".join(filter(None, (at, problem.where))))


def _positions(program: nodes.Program) -> _Position:
    root = _Position(None)
    for name, declared in _named(program.declarations):
        place = root.child(name, declared.location)
        if isinstance(declared, nodes.FacetDeclaration):
            _body(place, declared.body)
            _catch(place, declared.catch)
    return root


def _named(
    declarations: Iterable[nodes.Declaration], namespace: str = ""
) -> Iterator[tuple[str, _Declared]]:
    for declared in declarations:
        name = f"{namespace}.{declared.name}" if namespace else declared.name
        if isinstance(declared, nodes.Namespace):
            yield from _named(declared.declarations, name)
        else:
            yield name, declared


def _body(container: _Position, blocks: tuple[nodes.Block, ...]) -> None:
    for index, block in enumerate(blocks):
        place = container
        if len(blocks) > 1:
            place = container.child(f"block {index}", block.location)
        if block.foreach is not None:
            place.child("foreach", block.location)
        _cases(place, block.cases)
        _statements(place, block.statements, block.yields)


def _catch(container: _Position, catch: nodes.CatchClause | None) -> None:
    if catch is not None:
        first = next((s.location for s in (*catch.statements, *catch.yields)), None)
        place = container.child("catch", first)
        _cases(place, catch.cases)
        _statements(place, catch.statements, catch.yields)


def _cases(container: _Position, cases: tuple[nodes.WhenCase, ...]) -> None:
    for index, case in enumerate(cases):
        first = next((s.location for s in (*case.statements, *case.yields)), None)
        _statements(container.child(f"case {index}", first), case.statements, case.yields)
        _statements(container, case.statements, case.yields)


def _statements(
    container: _Position,
    statements: tuple[nodes.Statement, ...],
    yields: tuple[nodes.YieldStatement, ...],
) -> None:
    counts: dict[str, int] = {}
    for statement in statements:
        if isinstance(statement, nodes.StepStatement):
            place = container.child(f"step {statement.name!r}", statement.location)
            _body(place, statement.body)
            _catch(place, statement.catch)
            continue
        word = "sys.log" if isinstance(statement, nodes.LogStatement) else "sys.assert"
        counts[word] = counts.get(word, 0) + 1
        name = word if counts[word] == 1 else f"{word}_{counts[word]}"
        container.child(f"step {name!r}", statement.location)
    for one in yields:
        container.child("yield", one.location)
        container.child(f"yields to {one.call.target!r}", one.location)

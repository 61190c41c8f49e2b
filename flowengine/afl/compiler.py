"""Compile AFL text: parse it, resolve its names, and locate its problems in the text.

The linker names a place in words, ``shop.Order, block 1, step 'charge'``: declarations, blocks
and steps, outermost first. The same words address a tree of positions. Parts without a
position, such as arguments, are skipped: the innermost known position is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from flowengine.afl.parser import read_text
from flowengine.errors import InvalidProgram, Problem
from flowengine.program import link_program, nodes, parse_program

_Declared: TypeAlias = nodes.FacetDeclaration | nodes.SchemaDeclaration | nodes.ImplicitDeclaration


def compile_text(
    text: str | bytes, file: str = "", *, allow_scripts: bool = False
) -> nodes.Program:
    """Compile a text to a linked program.

    `file` names the text in errors. Raises InvalidText for a syntax error, and
    InvalidProgram with all problems of the program, each with line and column; a script block
    is one unless the caller allows it.
    """
    return checked(read_text(text, file), file, allow_scripts=allow_scripts)


def checked(document: nodes.Json, file: str = "", *, allow_scripts: bool = False) -> nodes.Program:
    """Link program JSON parsed from a text; raises InvalidProgram."""
    program = parse_program(document)
    try:
        link_program(program, allow_scripts=allow_scripts)
    except InvalidProgram as problems:
        root = _positions(program)
        found = [_with_position(problem, root, file) for problem in problems.problems]
        raise InvalidProgram(found) from None
    return program


@dataclass(slots=True)
class _Position:
    location: nodes.Location | None
    inside: dict[str, _Position] = field(default_factory=dict)

    def child(self, word: str, location: nodes.Location | None) -> _Position:
        """Return the child of that name; the first one, if there are several."""
        return self.inside.setdefault(word, _Position(location))


def _with_position(problem: Problem, root: _Position, file: str) -> Problem:
    place, location = root, None
    for word in (*problem.where.split(", "), problem.what.partition(",")[0]):
        place = place.inside.get(word, place)
        location = place.location or location
    at = file
    if location is not None and file:
        at = f"{file}:{location.line}:{location.column}"
    elif location is not None:
        at = f"line {location.line}, column {location.column}"
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
        _contents(place, block)


def _catch(container: _Position, catch: nodes.CatchClause | None) -> None:
    if catch is not None:
        _contents(container.child("catch", _first(catch)), catch)


def _first(part: nodes.CatchClause | nodes.WhenCase) -> nodes.Location | None:
    return next((inner.location for inner in (*part.statements, *part.yields)), None)


def _contents(place: _Position, part: nodes.Block | nodes.CatchClause | nodes.WhenCase) -> None:
    for index, case in enumerate(() if isinstance(part, nodes.WhenCase) else part.cases):
        name = "default" if case.condition is None else f"case-{index}"
        _contents(place.child(name, _first(case)), case)
    counts: Counter[str] = Counter()
    for statement in part.statements:
        if isinstance(statement, nodes.StepStatement):
            step = place.child(f"step {statement.name!r}", statement.location)
            _body(step, statement.body)
            _catch(step, statement.catch)
            continue
        word = "sys.log" if isinstance(statement, nodes.LogStatement) else "sys.assert"
        counts[word] += 1
        name = word if counts[word] == 1 else f"{word}_{counts[word]}"
        place.child(f"step {name!r}", statement.location)
    for one in part.yields:
        place.child("yield", one.location)
        place.child(f"yields to {one.call.target!r}", one.location)

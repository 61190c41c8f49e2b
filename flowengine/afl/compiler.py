"""Compile AFL text: parse it, resolve its names, and locate its problems in the text.

The linker names a place in words, ``shop.Order, block 1, step 'charge'``: declarations, blocks
and steps, outermost first. The same words address a tree of positions. Parts without a
position, such as arguments, are skipped: the innermost known position is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from flowengine.afl.parser import read_text
from flowengine.afl.transformer import KINDS
from flowengine.errors import InvalidProgram, Problem
from flowengine.program import link_program, nodes, parse_program


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
    return link_files([(parse_program(document), file)], allow_scripts=allow_scripts)


def link_files(
    parts: Sequence[tuple[nodes.Program, str | None]], *, allow_scripts: bool = False
) -> nodes.Program:
    """Link the parts of one program, each with the name of its text; raises InvalidProgram.

    The name is None for a part that was not read from a text: it has no positions.
    """
    declared = [declared for part, _ in parts for declared in part.declarations]
    program = nodes.Program(tuple(declared))
    if len(parts) > 1:
        program = nodes.Program(tuple(sorted(declared, key=_kind)))
    try:
        link_program(program, allow_scripts=allow_scripts)
    except InvalidProgram as problems:
        root = _Position(None, (parts[0][1] or "") if len(parts) == 1 else "")
        for part, file in parts:
            if file is not None:
                _add_positions(root, part, file)
        found = [_with_position(problem, root) for problem in problems.problems]
        raise InvalidProgram(found) from None
    return program


def merged(documents: Sequence[nodes.Json]) -> nodes.Json:
    """Return one document of program JSON for several that were parsed from texts."""
    if len(documents) == 1:
        return documents[0]
    declared = [node for one in documents for node in one.get("declarations", ())]
    ordered = sorted(declared, key=lambda node: KINDS.index(node["type"]))
    return {"type": "Program", "declarations": ordered}


def _kind(declared: nodes.Declaration) -> int:
    """The place of a declaration among the kinds, as in the output of AFL's compiler."""
    match declared:
        case nodes.Namespace():
            kind = "Namespace"
        case nodes.FacetDeclaration(kind=of_facet):
            kind = of_facet.value
        case nodes.ImplicitDeclaration():
            kind = "ImplicitDecl"
        case nodes.SchemaDeclaration():
            kind = "SchemaDecl"
    return KINDS.index(kind)


@dataclass(slots=True)
class _Position:
    location: nodes.Location | None
    file: str = ""
    inside: dict[str, _Position] = field(default_factory=dict)

    def child(self, word: str, location: nodes.Location | None) -> _Position:
        """Return the child of that name; the first one, if there are several."""
        return self.inside.setdefault(word, _Position(location, self.file))


def _with_position(problem: Problem, root: _Position) -> Problem:
    place, location = root, None
    for word in (*problem.where.split(", "), problem.what.partition(",")[0]):
        place = place.inside.get(word, place)
        location = place.location or location
    at = file = place.file
    if location is not None and file:
        at = f"{file}:{location.line}:{location.column}"
    elif location is not None:
        at = f"line {location.line}, column {location.column}"
    return replace(problem, where=", ".join(filter(None, (at, problem.where))))


def _add_positions(root: _Position, program: nodes.Program, file: str) -> None:
    for name, declared in _named(program.declarations):
        if isinstance(declared, nodes.Namespace):
            name = f"namespace {name!r}"
        place = root.inside.setdefault(name, _Position(declared.location, file))
        if isinstance(declared, nodes.Namespace):
            for used in declared.uses:
                used_at = _Position(declared.location, file)
                place.inside.setdefault(f"uses {used!r}", used_at)
        elif isinstance(declared, nodes.FacetDeclaration):
            _body(place, declared.body)
            _catch(place, declared.catch)


def _named(
    declarations: Iterable[nodes.Declaration], namespace: str = ""
) -> Iterator[tuple[str, nodes.Declaration]]:
    for declared in declarations:
        name = f"{namespace}.{declared.name}" if namespace else declared.name
        yield name, declared
        if isinstance(declared, nodes.Namespace):
            yield from _named(declared.declarations, name)


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

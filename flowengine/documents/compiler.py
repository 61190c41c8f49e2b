"""Compile documents: add the declarations that their calls name, link, and locate problems.

A called event facet is declared as its code declares it, if that is known. If not, its parameters
are the arguments of its calls. The workflows that tasks start are parts of the same program: a run
keeps the versions with which it began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flowengine.documents.problems import Place
from flowengine.documents.reader import ReadDocument, read_document
from flowengine.errors import InvalidProgram, Problem
from flowengine.program import link_program, nodes, parse_program
from flowengine.program.commands import COMMANDS
from flowengine.program.function_options import function_of
from flowengine.program.standard import CHILD, RESULT, STANDARD, is_built_in
from flowengine.scheduling import Schedule

_Json = dict[str, Any]
FindFacet = Callable[[str], nodes.FacetDeclaration | None]
FindWorkflow = Callable[[str], nodes.Program | None]


@dataclass(frozen=True)
class CompiledDocument:
    """A workflow of a document."""

    name: str
    file: str
    program: nodes.Program
    schedules: tuple[Schedule, ...]
    description: str = ""


def _unknown(name: str) -> None:
    return None


def compile_document(
    text: str | bytes,
    name: str,
    file: str = "",
    *,
    find_facet: FindFacet = _unknown,
    find_workflow: FindWorkflow = _unknown,
) -> CompiledDocument:
    """Compile one document; raises InvalidDocument with all its problems.

    `name` is that of the workflow; `file` names the text in errors. `find_facet` returns the
    declaration of an event facet by its qualified name, `find_workflow` the program of a workflow.
    """
    read = read_document(text, name, file)
    return link_document(read, {name: read}, find_facet=find_facet, find_workflow=find_workflow)


def link_document(
    document: ReadDocument,
    others: Mapping[str, ReadDocument],
    *,
    find_facet: FindFacet = _unknown,
    find_workflow: FindWorkflow = _unknown,
) -> CompiledDocument:
    """Link a document with those that its tasks start, by name; raises InvalidDocument."""
    problems = document.problems
    parts, programs = [document], []
    for part in parts:  # grows
        for name, place in part.children.items():
            other = others.get(name)
            program = None if other is not None else find_workflow(name)
            if other is not None and other.problems and other is not document:
                problems.add(
                    document.children.get(name, place), f"`{name}` has problems of its own"
                )
            elif other is not None:
                parts += [other] if other not in parts else []
            elif program is not None:
                programs.append(program)
            elif part is document:
                hint = problems.near(name, others)
                problems.add(place, f"there is no workflow `{name}`{hint}")
    if document.is_limited:
        for part in parts:
            if document.name in part.children:
                by = "" if part is document else f" through `{part.name}`"
                what = f"`{document.name}` starts itself{by}, and would wait for its own `runs`"
                problems.add(document.children.get(part.name, Place()), what)
    _refuse_workflows(document, find_facet, find_workflow)
    declarations = _declarations(document, parts, programs, find_facet)
    whole = nodes.Program(tuple(declarations))
    if document.is_linkable:
        try:
            link_program(whole)
        except InvalidProgram as found:
            for problem in found.problems:
                place, what = _located(problem, document)
                if not problems or _is_about(problem, document):
                    problems.add(place, what)
    problems.check()
    return CompiledDocument(
        document.name, document.file, whole, tuple(document.schedules), document.description
    )


def _refuse_workflows(
    document: ReadDocument, find_facet: FindFacet, find_workflow: FindWorkflow
) -> None:
    """Refuse calls of workflows: no worker has an event facet of that name."""
    for name, calls in document.calls.items():
        if is_built_in(name) or name in COMMANDS or find_facet(name) is not None:
            continue
        program = find_workflow(name)
        if program is None:
            continue
        versions = [other for other, _ in _flat(program.declarations) if function_of(other)]
        called = f", or `call: {versions[-1]}` for this version of it" if versions else ""
        what = f"`{name}` is a workflow, no event facet: write `workflow: {name}`{called}"
        document.problems.add(calls[0][0], what)


def _declarations(
    document: ReadDocument,
    parts: Iterable[ReadDocument],
    programs: Iterable[nodes.Program],
    find_facet: FindFacet,
) -> Iterator[nodes.Declaration]:
    found: dict[str, nodes.Declaration] = {}
    for program in programs:
        for name, declared in _flat(program.declarations):
            found.setdefault(name, declared)
    calls: dict[str, list[tuple[Place, frozenset[str]]]] = {}
    for part in parts:
        found[part.name] = _parsed(part.declaration, document)
        if part.children:
            found[CHILD] = STANDARD[CHILD]
        for name, each in part.calls.items():
            calls.setdefault(name, []).extend(each)
    for name in calls:
        if name in found or is_built_in(name):
            continue
        # Those of commands are the same with and without their code: so is the program.
        known = COMMANDS.get(name) or find_facet(name)
        found[name] = known if known is not None else _by_use(name, calls[name], document)
    for name, declared in found.items():
        namespace = name.rpartition(".")[0]
        yield nodes.Namespace(namespace, (), (declared,)) if namespace else declared


def _flat(
    declarations: Iterable[nodes.Declaration], namespace: str = ""
) -> Iterator[tuple[str, nodes.Declaration]]:
    for declared in declarations:
        name = f"{namespace}.{declared.name}" if namespace else declared.name
        if isinstance(declared, nodes.Namespace):
            yield from _flat(declared.declarations, name)
        else:
            yield name, declared


def _parsed(declaration: _Json, document: ReadDocument) -> nodes.Declaration:
    try:
        return parse_program({"type": "Program", "declarations": [declaration]}).declarations[0]
    except InvalidProgram as found:
        for problem in found.problems:
            document.problems.add(*_located(problem, document))
        raise document.problems.error() from None


def _by_use(
    name: str, calls: list[tuple[Place, frozenset[str]]], document: ReadDocument
) -> nodes.FacetDeclaration:
    """Declare a facet whose code is not known here by the arguments that it is given."""
    (_, first), *others = calls
    for place, given in others:
        if given != first:
            what = (
                f"the calls of `{name}` have different arguments, and its declaration is not known "
                "here: import its module (--module), or give all of them the same arguments"
            )
            document.problems.add(place, what)
            document.is_linkable = False  # each call would lack an argument
    fields = tuple(nodes.Field(argument) for argument in sorted(first))
    short = name.rpartition(".")[2]
    returns = (nodes.Field(RESULT),)
    called = function_of(name)
    function = None if called is None else nodes.FunctionOptions(called[1])
    kind = nodes.FacetKind.EVENT
    return nodes.FacetDeclaration(kind, short, params=fields, returns=returns, function=function)


def _is_about(problem: Problem, document: ReadDocument) -> bool:
    return problem.where.split(", ")[0] == document.name


def _located(problem: Problem, document: ReadDocument) -> tuple[Place, str]:
    """Return the innermost place of a problem that the linker or the parser names in words."""
    place = Place()
    words = problem.where.split(", ")
    for word in words:
        place = document.places.get(word, place)
    inner = [word for word in words[1:] if not word.startswith("step ")]
    about = f"{', '.join(inner)}: " if inner and inner != ["yield"] else ""
    return place, f"{about}{problem.what}"

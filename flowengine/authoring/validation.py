"""Find every problem that prevents decorated functions from compiling to programs.

A start stops at the first problem. This module traces each function separately and links the
traceable ones, to report all problems at once, each with its line.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from flowengine.authoring.definitions import Definition
from flowengine.authoring.function_lint import function_findings
from flowengine.authoring.locations import is_internal
from flowengine.authoring.tracer import declaration_of, program_of
from flowengine.authoring.unordered import unordered_steps
from flowengine.errors import AuthoringError, FlowengineError, InvalidProgram, UntraceableCode
from flowengine.program import nodes
from flowengine.program.linker import link_program

_PREFIX = re.compile(r"(?P<file>[^:\n]+):(?P<line>\d+): (?P<what>.*)", re.DOTALL)
_TITLE = re.compile(r"\((?P<file>[^():\n]+):(?P<line>\d+)\)")
_STEP = re.compile(r"step '([^']+)'")
_Part = (
    nodes.FacetDeclaration | nodes.Block | nodes.WhenCase | nodes.CatchClause | nodes.StepStatement
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem in an author's code."""

    location: nodes.Location
    what: str
    is_warning: bool = False  #: the function compiles, but may not do what its author means


def findings_of(definitions: Iterable[Definition]) -> list[Finding]:
    """Return all problems of these functions and their callees, sorted by file and line."""
    reached: dict[str, Definition] = {}
    callees: dict[str, set[str]] = {}
    problems: dict[str, list[Finding]] = {}
    warnings: list[Finding] = []
    pending = list(definitions)
    while pending:
        definition = pending.pop()
        if definition.name in reached:
            continue
        reached[definition.name] = definition
        callees[definition.name], problems[definition.name] = set(), []
        try:
            declaration, scope = declaration_of(definition)
        except UntraceableCode as untraceable:
            each = [AuthoringError(str(finding)) for finding in untraceable.findings]
            problems[definition.name] = [finding_of(one, definition.location) for one in each]
            continue
        except Exception as problem:
            problems[definition.name] = [finding_of(problem, definition.location)]
            continue
        callees[definition.name] = set(scope.callees)
        pending += scope.callees.values()
        called = scope.callees.items()
        events = frozenset(name for name, d in called if d.kind is nodes.FacetKind.EVENT)
        found = list(unordered_steps(declaration, events, scope.unordered))
        if definition.function is not None:
            found += function_findings(definition.fn)
        warnings += [Finding(location, what, is_warning=True) for location, what in found]
    findings = [*warnings, *(finding for each in problems.values() for finding in each)]
    for name, definition in reached.items():
        is_sound = not any(problems[other] for other in _closure(name, callees))
        if is_sound and definition.kind is not nodes.FacetKind.EVENT:
            findings += _link_findings(definition)
    return sorted(set(findings), key=lambda f: (f.location.file, f.location.line, f.what))


def finding_of(problem: BaseException, where: nodes.Location) -> Finding:
    """Convert an error to a finding at its line of the author's code, else at `where`."""
    if isinstance(problem, SyntaxError) and problem.filename:
        return Finding(nodes.Location(problem.lineno or 0, file=problem.filename), str(problem.msg))
    text = str(problem)
    if isinstance(problem, FlowengineError):
        if prefix := _PREFIX.fullmatch(text):
            return Finding(nodes.Location(int(prefix["line"]), file=prefix["file"]), prefix["what"])
        if title := _TITLE.search(text):
            where = nodes.Location(int(title["line"]), file=title["file"])
        return Finding(where, text)
    for frame in reversed(traceback.extract_tb(problem.__traceback__)):
        if not is_internal(frame.filename):
            where = nodes.Location(frame.lineno or 0, file=frame.filename)
            break
    return Finding(where, f"{type(problem).__name__}: {text}" if text else type(problem).__name__)


def _closure(name: str, callees: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    pending = [name]
    while pending:
        one = pending.pop()
        if one not in seen:
            seen.add(one)
            pending += callees.get(one, ())
    return seen


def _link_findings(definition: Definition) -> list[Finding]:
    try:
        program = program_of(definition)
        link_program(program)
    except InvalidProgram as invalid:
        return [
            Finding(_location_in(program, problem.where) or definition.location, str(problem))
            for problem in invalid.problems
        ]
    except AuthoringError as problem:
        return [finding_of(problem, definition.location)]
    return []


def _location_in(program: nodes.Program, where: str) -> nodes.Location | None:
    """Return the location of a place that the linker names by facet and steps."""
    name = where.partition(",")[0].partition("/")[0]
    for namespace in program.declarations:
        for declared in namespace.declarations if isinstance(namespace, nodes.Namespace) else ():
            if (
                isinstance(declared, nodes.FacetDeclaration)
                and name == f"{namespace.name}.{declared.name}"
            ):
                return _deepest(declared, _STEP.findall(where))
    return None


def _deepest(facet: nodes.FacetDeclaration, steps: list[str]) -> nodes.Location | None:
    part: _Part = facet
    location = facet.location
    for step in steps:
        statement = next((s for s in _statements(part) if s.name == step), None)
        if statement is None:
            break
        part, location = statement, statement.location
    return location


def _statements(part: _Part) -> Iterator[nodes.StepStatement]:
    """Yield the steps directly in a part, not those nested in its steps."""
    parts: list[_Part] = []
    match part:
        case nodes.FacetDeclaration(body=body):
            parts += body
        case nodes.StepStatement(body=body, catch=catch, always=always):
            parts += [*body, *always, *([catch] if catch else [])]
        case nodes.Block(cases=cases) | nodes.CatchClause(cases=cases):
            parts += cases
    if not isinstance(part, nodes.FacetDeclaration | nodes.StepStatement):
        yield from (s for s in part.statements if isinstance(s, nodes.StepStatement))
    for inner in parts:
        yield from _statements(inner)

"""Checks of a program before it runs, beyond its names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flowengine.errors import Problem
from flowengine.program.link_context import Names
from flowengine.program.nodes import (
    Block,
    CatchClause,
    FacetDeclaration,
    FacetKind,
    Field,
    SchemaDeclaration,
    StepStatement,
    WhenCase,
)
from flowengine.program.plan import BlockPlan, Body, FacetPlan, Plan, StatementPlan
from flowengine.program.prompts import prompt_problems
from flowengine.program.schemas import schema_problems
from flowengine.program.standard import NAMESPACE, REQUEST, STANDARD, is_built_in

_Waits = Mapping[BlockPlan, Mapping[StatementPlan, set[StatementPlan]]]

_NO_SCRIPTS = (
    "uses a script block; scripts are run only where the setting `scripts` is on "
    "(FLOWENGINE_SCRIPTS=on)"
)


def unsupported(names: Names, allow_scripts: bool) -> list[Problem]:
    """Report every construct that this version does not run, or may not run here."""
    problems: list[Problem] = []
    for declared in names.callables.values():
        node = declared.node
        if not isinstance(node, FacetDeclaration):
            continue
        problems += [Problem(declared.name, what) for what in prompt_problems(node)]
        scripts = [node.pre_script] if node.pre_script else []
        for part in _parts(node.body, node.catch, with_always=True):
            scripts += [part.script] if isinstance(part, Block) and part.script else []
        if scripts and not allow_scripts:
            problems.append(Problem(declared.name, _NO_SCRIPTS))
        for language in sorted({script.language for script in scripts} - {"python"}):
            what = f"uses a script in {language!r}; the only language of scripts is 'python'"
            problems.append(Problem(declared.name, what))
    return problems


def reserved_names(names: Names) -> list[Problem]:
    """Report declarations in the namespace of the engine that are not the built-in facets.

    Workers have code for its names. A program that declared `flowengine.script` itself could call
    it, past the check of script blocks.
    """
    built_in = ", ".join(sorted(STANDARD))
    what = f"is in the namespace {NAMESPACE!r}, which is the engine's own and has: {built_in}"
    return [
        Problem(name, f"{what}; choose another namespace")
        for name, declared in names.callables.items()
        if is_built_in(name)
        and name != REQUEST
        and (name not in STANDARD or getattr(declared.node, "kind", None) != STANDARD[name].kind)
    ]


def broken_schemas(names: Names) -> list[Problem]:
    """Report the JSON Schemas of fields that cannot be validated, or not within bounds."""
    problems: list[Problem] = []
    for declared in names.callables.values():
        fields: tuple[Field, ...] = ()
        if isinstance(declared.node, FacetDeclaration):
            fields = (*declared.node.params, *declared.node.returns)
        elif isinstance(declared.node, SchemaDeclaration):
            fields = declared.node.fields
        for field in fields:
            if field.schema is not None:
                where = f"{declared.name}, parameter {field.name!r}"
                problems += [Problem(where, what) for what in schema_problems(field.schema)]
    return problems


def _parts(
    body: tuple[Block, ...], catch: CatchClause | None, *, with_always: bool = False
) -> Iterator[Block | WhenCase | CatchClause]:
    """Return all blocks, cases and catches, those inside the statements too."""
    parts: list[Block | WhenCase | CatchClause] = [*body, *([catch] if catch else [])]
    while parts:
        part = parts.pop()
        yield part
        if not isinstance(part, WhenCase):
            parts += part.cases
        for statement in part.statements:
            if isinstance(statement, StepStatement):
                parts += [*statement.body, *(statement.always if with_always else ())]
                parts += [statement.catch] if statement.catch else []


def step_cycles(waits: _Waits) -> list[Problem]:
    """Report the steps of a block that wait for each other in a cycle."""
    return [
        Problem(
            block.address.rpartition("/")[0],
            f"the steps {' → '.join(s.name for s in cycle)} wait for each other in a cycle",
        )
        for block, graph in waits.items()
        if (cycle := _cycle(graph))
    ]


def call_cycles(plan: Plan) -> list[Problem]:
    """Report facets that call themselves unconditionally.

    A recursive call inside a foreach, a case or a catch may end: a list may be empty, a
    condition may not hold. Any other is made each time.
    """
    graph = {
        facet: {*_always_called(facet.body), *_mixed_in(facet)} for facet in plan.facets.values()
    }
    cycle = _cycle(graph)
    if not cycle:
        return []
    names = " → ".join(facet.name for facet in cycle)
    return [Problem(cycle[0].name, f"calls itself without end: {names} is a cycle")]


def mark_recursive(plan: Plan) -> None:
    """Mark the facets that can call themselves, also through other facets; note all callers."""
    graph: dict[FacetPlan, set[FacetPlan]] = {facet: set() for facet in plan.facets.values()}
    for statement in plan.statements.values():
        if statement.facet is not None:
            plan.callers.setdefault(statement.facet.name, []).append(statement)
        caller = plan.facets.get(statement.address.partition("/")[0])
        if caller is not None and statement.facet is not None:
            graph[caller].add(statement.facet)
    plan.has_recursion = bool(_cycle(graph))
    if not plan.has_recursion:
        return
    for facet in graph:
        reachable: set[FacetPlan] = set()
        ahead = [*graph[facet]]
        while ahead:
            called = ahead.pop()
            if called not in reachable:
                reachable.add(called)
                ahead += graph[called]
        facet.is_recursive = facet in reachable


def _mixed_in(facet: FacetPlan) -> Iterator[FacetPlan]:
    for mixin in facet.mixins:
        if mixin.statement.facet:
            yield mixin.statement.facet


def _always_called(body: Body) -> Iterator[FacetPlan]:
    for block in body:
        for statement in () if block.foreach else block.statements:
            yield from _always_called(statement.always)
            if statement.facet:
                # A statement's own body replaces the facet's, so only then is it entered.
                if statement.inline_body:
                    yield from _mixed_in(statement.facet)
                    yield from _always_called(statement.inline_body)
                else:
                    yield statement.facet


def _cycle(graph: Mapping[Any, set[Any]]) -> list[Any]:
    """Return one cycle of a graph, its first node repeated at the end, or nothing.

    Without recursion: a chain of ten thousand steps is an ordinary program.
    """
    done: set[Any] = set()
    for start in graph:
        path: list[Any] = []
        on_path: set[Any] = set()
        stack = [(start, iter(graph[start]))] if start not in done else []
        while stack:
            node, ahead = stack[-1]
            if node not in on_path:
                path.append(node)
                on_path.add(node)
            for following in ahead:
                if following in on_path:
                    return [*path[path.index(following) :], following]
                if following not in done:
                    stack.append((following, iter(graph.get(following, ()))))
                    break
            else:
                done.add(node)
                on_path.discard(path.pop())
                stack.pop()
    return []


def unread_attribute(step: StatementPlan, path: tuple[str, ...]) -> str:
    """Return the reason why a step can never have the attribute that a reference reads.

    The results of an event are known only when it has completed: it may return an undeclared
    attribute, unless its schema excludes it.
    """
    facet = step.facet
    if len(path) < 2:
        return ""
    attribute = path[1]
    if step.schema and attribute not in [field.name for field in step.schema.fields]:
        known = ", ".join(field.name for field in step.schema.fields) or "nothing"
        return f"{step.name!r} has no field {attribute!r}: {step.schema.name!r} has {known}"
    if facet is None or attribute in step.aliases:
        return ""
    declared = {f.name: f for f in (*facet.params, *facet.returns)}
    if attribute in declared:
        schema = declared[attribute].schema
        for depth, name in enumerate(path[2:], start=2):
            schema = _inner_schema(schema)
            properties = schema.get("properties")
            if properties is None or schema.get("additionalProperties"):
                return ""
            if name not in properties:
                known = ", ".join(sorted(properties))
                return f"{'.'.join(path[:depth])} has no {name!r}; {facet.name!r} returns: {known}"
            inner = properties[name]
            if not isinstance(inner, Mapping):
                return ""  # true or false: a schema without parts
            schema = {**inner, "$defs": schema.get("$defs", {})}
        return ""
    is_script = any(block.is_script for block in step.body)
    if is_script or any(block.script for block in facet.node.body):
        return ""  # the results of a script are known only when it has run
    yielded = step.own_yields | yielded_attributes(facet.node.body, facet.node.catch)
    if facet.kind is FacetKind.EVENT or attribute in yielded:
        return ""
    known = ", ".join(declared) or "nothing"
    return f"{step.name!r} has no attribute {attribute!r}: {facet.name!r} declares {known}"


def _inner_schema(schema: Mapping[str, Any] | None) -> dict[str, Any]:
    found = dict(schema or {})
    if "$ref" in found:
        defined = found.get("$defs", {})
        named = defined.get(str(found["$ref"]).removeprefix("#/$defs/"))
        return {**(named if isinstance(named, Mapping) else {}), "$defs": defined}
    return found


def yielded_attributes(body: tuple[Block, ...], catch: CatchClause | None) -> frozenset[str]:
    """Return the attributes that some yield in the blocks gives, declared or not."""
    attributes: set[str] = set()
    for part in _parts(body, catch):
        attributes |= {a.name for y in part.yields for a in y.call.arguments}
        if isinstance(part, Block) and part.foreach and part.foreach.collect_errors:
            attributes.add("errors")
    return frozenset(attributes)

"""Check declarations: the namespaces they use, and the types and names of their fields.

A type is built in, or the name of a schema or a facet. Names of types are resolved like those of
calls, from the place of the declaration, and the plan has the qualified names of schemas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from difflib import get_close_matches

from flowengine.errors import Problem
from flowengine.program.link_context import Declared, Names, repeated
from flowengine.program.nodes import (
    ArrayType,
    Declaration,
    FacetDeclaration,
    Field,
    Namespace,
    SchemaDeclaration,
    Type,
)
from flowengine.program.types import BUILT_IN


def unknown_namespaces(names: Names) -> list[Problem]:
    """Report every `use` of a namespace that the program does not declare."""
    blocks = list(_namespaces(names.program.declarations))
    near = names.suggestions.near
    known = list(dict.fromkeys(name for name, _ in blocks))
    return [
        Problem(
            f"namespace {name!r}",
            f"uses {used!r}, which no file of the program declares{near(used, known)}",
        )
        for name, block in blocks
        for used in block.uses
        if used not in known
    ]


def _namespaces(
    declarations: Iterable[Declaration], outer: str = ""
) -> Iterator[tuple[str, Namespace]]:
    for declared in declarations:
        if isinstance(declared, Namespace):
            name = f"{outer}.{declared.name}" if outer else declared.name
            yield name, declared
            yield from _namespaces(declared.declarations, name)


def broken_fields(names: Names) -> list[Problem]:
    """Report unknown and ambiguous types, and fields that a schema declares twice."""
    problems: list[Problem] = []
    for declared in names.callables.values():
        for what, fields in _fields(declared):
            for field in fields:
                where = f"{declared.name}, {what} {field.name!r}"
                why = _why_unknown(_element(field.type), declared, names)
                problems += [Problem(where, why)] if why else []
            if what == "field":
                twice = repeated(field.name for field in fields)
                problems += [
                    Problem(declared.name, f"declares the field {n!r} twice") for n in twice
                ]
    return problems


def _fields(declared: Declared) -> Iterator[tuple[str, tuple[Field, ...]]]:
    if isinstance(declared.node, FacetDeclaration):
        yield "parameter", declared.node.params
        yield "return", declared.node.returns
    elif isinstance(declared.node, SchemaDeclaration):
        yield "field", declared.node.fields


def _element(declared: Type) -> str:
    while isinstance(declared, ArrayType):
        declared = declared.element
    return declared


def _why_unknown(name: str, declared: Declared, names: Names) -> str:
    if name in BUILT_IN:
        return ""
    found = names.resolve(name, declared)
    if isinstance(found, Declared):
        return ""
    if "ambiguous" in found:
        return f"the type {found}"
    near = get_close_matches(name, [*BUILT_IN, *names.callables], n=1)
    return f"unknown type {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def with_qualified_types(
    fields: tuple[Field, ...], declared: Declared, names: Names
) -> tuple[Field, ...]:
    """Return the fields with the qualified names of the schemas that are their types."""
    if all(_element(field.type) in BUILT_IN for field in fields):
        return fields
    return tuple(replace(f, type=_qualified(f.type, declared, names)) for f in fields)


def _qualified(declared_type: Type, declared: Declared, names: Names) -> Type:
    if isinstance(declared_type, ArrayType):
        return ArrayType(_qualified(declared_type.element, declared, names))
    if declared_type in BUILT_IN:
        return declared_type
    found = names.resolve(declared_type, declared)
    if isinstance(found, Declared) and isinstance(found.node, SchemaDeclaration):
        return found.name
    return declared_type

"""Check the JSON Schemas of a program when it is loaded.

A schema is JSON Schema 2020-12, complete in itself: it refers to its own parts only, so that
nothing is read from files or the network. Keywords are refused whose meaning depends on other
documents, and those whose validation has no bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from flowengine.program.json_reader import kind_of
from flowengine.program.nodes import Json
from flowengine.program.patterns import pattern_problem
from flowengine.program.references import resolved

MAX_DEPTH = 100  #: levels of nesting of a schema

_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_ONE = frozenset(
    {"additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"}
)
_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAPS = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
_COUNTS = frozenset(
    {"maxContains", "maxItems", "maxLength", "maxProperties"}
    | {"minContains", "minItems", "minLength", "minProperties"}
)
_NUMBERS = frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"})
_TEXTS = frozenset({"$comment", "$ref", "description", "format", "pattern", "title"})
#: These apply a subschema to the same value: a cycle of them never ends.
_IN_PLACE = frozenset({"allOf", "anyOf", "dependentSchemas", "else", "if", "not", "oneOf", "then"})
_REFUSED = {
    "$anchor": "name a part by its place: #/$defs/NAME",
    "$dynamicAnchor": "name a part by its place: #/$defs/NAME",
    "$dynamicRef": "use $ref: #/$defs/NAME",
    "$recursiveAnchor": "name a part by its place: #/$defs/NAME",
    "$recursiveRef": "use $ref: #/$defs/NAME",
    "$vocabulary": "leave it out",
    "unevaluatedItems": "use items: false",
    "unevaluatedProperties": "use additionalProperties: false",
}
_AT_THE_TOP = frozenset({"$id", "$schema"})


def schema_problems(schema: Json) -> list[str]:
    """Return every reason why a schema is refused, each with its place."""
    if not isinstance(schema, Mapping):
        return [f"the schema must be a map, found {kind_of(schema)}"]
    walk = _Walk(schema)
    walk.visit_all()
    return [f"the schema is refused: {place}: {what}" for place, what in walk.problems]


class _Walk:
    """A walk over all subschemas that validation may reach, without recursion."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self.problems: list[tuple[str, str]] = []
        self._waiting: list[tuple[Any, str, int]] = [(root, "#", 0)]
        self._graph: dict[int, set[int]] = {}  #: from a schema to those applied to the same value
        self._places: dict[int, str] = {}

    def visit_all(self) -> None:
        while self._waiting:
            schema, place, depth = self._waiting.pop()
            if isinstance(schema, bool) or id(schema) in self._graph:
                continue
            if not isinstance(schema, Mapping):
                self._problem(place, f"must be a schema, found {kind_of(schema)}")
            elif depth > MAX_DEPTH:
                self._problem(place, f"is nested more than {MAX_DEPTH} levels deep")
                return
            else:
                self._graph[id(schema)], self._places[id(schema)] = set(), place
                self._visit(schema, place, depth)
        try:
            TopologicalSorter(self._graph).prepare()
        except CycleError as cycle:
            names = " → ".join(self._places.get(one, "?") for one in reversed(cycle.args[1]))
            self._problem(names, "refers to itself for the same value, so that no check of it ends")

    def _problem(self, place: str, what: str) -> None:
        self.problems.append((place, what))

    def _visit(self, schema: Mapping[str, Any], place: str, depth: int) -> None:
        for keyword, value in schema.items():
            at = f"{place}/{keyword}"
            if keyword in _REFUSED:
                self._problem(at, f"{keyword} is not supported: {_REFUSED[keyword]}")
            elif keyword in _AT_THE_TOP and place != "#":
                self._problem(at, f"{keyword} is supported at the top of a schema only")
            elif keyword in _AT_THE_TOP and not isinstance(value, str):
                self._problem(at, f"must be text, found {kind_of(value)}")
            elif keyword == "$schema" and "2020-12" not in str(value):
                self._problem(at, f"schemas are JSON Schema 2020-12, found {str(value)[:80]!r}")
            elif what := _misfit(keyword, value):
                self._problem(at, what)
            else:
                for inner, where in self._inner(keyword, value, at):
                    self._waiting.append((inner, where, depth + 1))
                    if keyword in _IN_PLACE or keyword == "$ref":
                        self._graph[id(schema)].add(id(inner))

    def _inner(self, keyword: str, value: Any, at: str) -> Iterator[tuple[Any, str]]:
        """Yield the subschemas of a keyword."""
        if keyword in _ONE:
            yield value, at
        elif keyword in _LISTS:
            yield from ((one, f"{at}/{index}") for index, one in enumerate(value))
        elif keyword in _MAPS:
            for name, one in value.items():
                if keyword == "patternProperties" and (why := pattern_problem(name)):
                    self._problem(at, f"the pattern {name[:40]!r} {why}")
                yield one, f"{at}/{name}"
        elif keyword == "$ref":
            found = resolved(self._root, value)
            if isinstance(found, bool | Mapping):
                yield found, value
            elif value.startswith("#"):
                self._problem(at, f"there is no schema at {value[:80]!r}")
            else:
                self._problem(
                    at,
                    f"{value[:80]!r} is outside of this schema, and nothing is fetched; copy it "
                    "into $defs and refer to #/$defs/NAME",
                )


def _misfit(keyword: str, value: Any) -> str:
    """Return why a keyword cannot have the value; empty if it can, or if it is unknown."""
    if keyword in _LISTS:
        return "" if isinstance(value, list) and value else "must be a list with entries"
    if keyword in _MAPS:
        return "" if isinstance(value, Mapping) else f"must be a map, found {kind_of(value)}"
    if keyword in _COUNTS:
        is_count = _is_number(value) and value >= 0 and value == value // 1
        return "" if is_count else "must be a whole number of at least 0"
    if keyword in _NUMBERS:
        is_number = _is_number(value) and (keyword != "multipleOf" or value > 0)
        above = " above 0" if keyword == "multipleOf" else ""
        return "" if is_number else f"must be a number{above}, found {kind_of(value)}"
    if keyword in _TEXTS:
        if not isinstance(value, str):
            return f"must be text, found {kind_of(value)}"
        why = pattern_problem(value) if keyword == "pattern" else ""
        return f"the pattern {value[:40]!r} {why}" if why else ""
    match keyword:
        case "type":
            types = value if isinstance(value, list) else [value]
            is_known = bool(types) and all(isinstance(t, str) and t in _TYPES for t in types)
            return "" if is_known else f"{str(value)[:80]!r} is none of {', '.join(sorted(_TYPES))}"
        case "enum":
            return "" if isinstance(value, list) else f"must be a list, found {kind_of(value)}"
        case "required":
            return "" if _are_names(value) else "must be a list of names"
        case "dependentRequired":
            is_map = isinstance(value, Mapping) and all(map(_are_names, value.values()))
            return "" if is_map else "must be a map of lists of names"
        case "uniqueItems":
            return "" if isinstance(value, bool) else "must be true or false"
    return ""


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

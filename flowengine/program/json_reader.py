"""Read a JSON document, and collect its problems with their places.

All problems are reported together, each with the declaration and statement it concerns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from flowengine.errors import Problem
from flowengine.program.nodes import Json, Location

T = TypeVar("T")


class DocumentReader:
    """Reads parts of a document, and collects problems with the current place."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._where: list[str] = []

    @contextmanager
    def inside(self, place: str) -> Iterator[None]:
        self._where.append(place)
        yield
        self._where.pop()

    def nested_too_deeply(self) -> Problem:
        return Problem(", ".join(self._where[:3]), "is nested too deeply")

    def problem(self, what: str) -> None:
        self.problems.append(Problem(", ".join(self._where), what))

    def mapping(self, node: Json, expected: str) -> Mapping[str, Any]:
        if isinstance(node, dict):
            return node
        self.problem(f"expected {expected}, found {kind_of(node)}")
        return {}

    def elements(self, node: Mapping[str, Any], key: str) -> list[Any]:
        value = node.get(key)
        if value is None:
            return []
        if isinstance(value, list):
            return value
        self.problem(f"{key!r} must be a list, found {kind_of(value)}")
        return []

    def text(self, node: Mapping[str, Any], key: str, *, default: str | None = None) -> str:
        value = node.get(key, default)
        if isinstance(value, str) and (value or default == ""):
            return value
        self.problem(
            f"{node.get('type', 'a node')!s} needs {key!r} as text, found {kind_of(value)}"
        )
        return ""

    def truth(self, node: Mapping[str, Any], key: str) -> bool:
        value = node.get(key, False)
        if isinstance(value, bool):
            return value
        self.problem(f"{key!r} must be true or false, found {kind_of(value)}")
        return False

    def each(self, node: Mapping[str, Any], key: str, parse: Callable[[Any], T]) -> tuple[T, ...]:
        return tuple(parse(child) for child in self.elements(node, key))


def location_of(node: Mapping[str, Any]) -> Location | None:
    place = node.get("location")
    if not isinstance(place, dict) or not isinstance(place.get("line"), int):
        return None
    return Location(place["line"], place.get("column", 0), place.get("file", ""))


def is_count(value: object) -> bool:
    """Whether the value is a whole number of at least 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def kind_of(value: object) -> str:
    if value is None:
        return "nothing"
    if value == "":
        return "empty text"
    named = {dict: "a map", list: "a list", str: "text", bool: "a truth value"}
    numbers = {int: "a number", float: "a number"}
    return (named | numbers).get(type(value), f"a {type(value).__name__}")

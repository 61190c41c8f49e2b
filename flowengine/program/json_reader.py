"""Read a JSON document, and collect its problems with their places.

All problems are reported together, each with the declaration and statement it concerns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from flowengine.errors import InvalidProgram, Problem
from flowengine.program.nodes import Json, Location

T = TypeVar("T")
_MAX_REPEATED = 100  # problems that are reported
_LONGEST_PLACE = 500  # characters


def read_json(text: str | bytes, file: str = "") -> Json:
    """Return the document of a JSON text; raise InvalidProgram if it is none.

    A key that is given twice in one map is refused: `json` would take the last value, and readers
    of the text may take the first.
    """
    repeated: dict[int, tuple[dict[str, Json], str]] = {}

    def as_map(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        found = dict(pairs)
        if len(found) < len(pairs) and len(repeated) < _MAX_REPEATED:
            seen: set[str] = set()
            twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            repeated[id(found)] = found, twice  # with the map, so that its id stays its own
        return found

    try:
        document = json.loads(text, object_pairs_hook=as_map)
    except ValueError as problem:
        raise InvalidProgram([Problem(file, f"is not JSON: {problem}")]) from None
    except RecursionError:
        raise InvalidProgram([Problem(file, "is nested too deeply")]) from None
    if repeated:
        problems = [
            Problem(place, f"has the key {repeated[found][1][:100]!r} twice; remove one")
            for found, place in _places(document, repeated)
        ]
        raise InvalidProgram(problems or [Problem(file, "has maps with a key twice; remove one")])
    return document


def _places(document: Json, wanted: Container[int]) -> Iterator[tuple[int, str]]:
    """Yield the maps of a document with these ids, each with its place.

    Nodes know their parent: the places themselves, of a wide and deep document, would fill the
    memory.
    """
    waiting: list[tuple[Json, _Node | None]] = [(document, None)]
    while waiting:
        part, node = waiting.pop()
        if id(part) in wanted:
            yield id(part), _place(node)[:_LONGEST_PLACE]
        if isinstance(part, dict):
            waiting += [(inner, _Node(f".{name[:100]}", node)) for name, inner in part.items()]
        elif isinstance(part, list):
            waiting += [(inner, _Node(f"[{index}]", node)) for index, inner in enumerate(part)]


class _Node(NamedTuple):
    step: str
    parent: _Node | None


def _place(node: _Node | None) -> str:
    steps = []
    while node is not None:
        steps.append(node.step)
        node = node.parent
    return "$" + "".join(reversed(steps))


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

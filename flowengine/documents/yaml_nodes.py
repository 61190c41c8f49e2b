"""The values of a YAML text with their places.

Scalars are those of YAML 1.2: `no`, `on` and `1:30` are text. Keys are always text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from flowengine.documents.problems import Place

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUTH = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_OCTAL, _HEXADECIMAL = re.compile(r"0o[0-7]+"), re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


@dataclass(frozen=True, slots=True)
class Scalar:
    value: Any  #: text, a number, true, false or null
    text: str  #: as it is written, without quotes
    place: Place
    tag: str = ""  #: of the author, as ``!Subprocess``; empty: none
    source: str = field(default="", repr=False)  #: the part of the text, with quotes


@dataclass(frozen=True, slots=True)
class ListNode:
    items: tuple[Node, ...]
    place: Place
    tag: str = ""


@dataclass(frozen=True, slots=True)
class MapNode:
    entries: tuple[tuple[Scalar, Node], ...]
    place: Place
    tag: str = ""
    #: By the text of the key: each problem of a long document asks for its place.
    _by_key: dict[str, tuple[Scalar, Node]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_key = {key.text: (key, value) for key, value in reversed(self.entries)}
        object.__setattr__(self, "_by_key", by_key)

    def get(self, key: str) -> Node | None:
        """Return the value of a key."""
        found = self._by_key.get(key)
        return None if found is None else found[1]

    def key(self, key: str) -> Scalar | None:
        """Return the key itself, with its place."""
        found = self._by_key.get(key)
        return None if found is None else found[0]


Node: TypeAlias = Scalar | ListNode | MapNode


def plain_scalar(text: str) -> Any:
    """Return the value of a scalar without quotes, by the core schema of YAML 1.2."""
    if text in _NULL:
        return None
    if text in _TRUTH:
        return _TRUTH[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _OCTAL.fullmatch(text):
        return int(text[2:], 8)
    if _HEXADECIMAL.fullmatch(text):
        return int(text[2:], 16)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _NOT_FINITE.fullmatch(text):
        return float(text.lower().replace(".", ""))
    return text


def plain(node: Node) -> Any:
    """Return the value of a node without its places."""
    match node:
        case Scalar():
            return node.value
        case ListNode():
            return [plain(item) for item in node.items]
        case MapNode():
            return {key.text: plain(value) for key, value in node.entries}


def walk(node: Node) -> Iterator[Node]:
    """Return a node and all nodes in it."""
    yield node
    match node:
        case ListNode():
            for item in node.items:
                yield from walk(item)
        case MapNode():
            for _, value in node.entries:
                yield from walk(value)


def found_kind(value: Any) -> str:
    """Say in words what was found."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {value}"
        case str():
            return "text" if value else "an empty text"
        case list():
            return "a list"
    return "a map"

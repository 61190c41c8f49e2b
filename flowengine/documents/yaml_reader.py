"""Read YAML text to nodes with places, within bounds.

The only module that imports PyYAML. Its `compose` builds nodes with their places and constructs no
values. Refused: more than one document, duplicate keys, deep nesting, aliases that multiply, and
numbers that JSON cannot write.
"""

from __future__ import annotations

import math
from typing import Any

import yaml  # type: ignore[import-untyped]

from flowengine.documents.problems import Place, Problems
from flowengine.documents.yaml_nodes import ListNode, MapNode, Node, Scalar, plain_scalar

MAX_BYTES = 1024 * 1024  #: of a document
MAX_DEPTH = 50  #: lists and maps inside each other
MAX_ALIASED = 10_000  #: values that aliases repeat
_STANDARD_TAG = "tag:yaml.org,2002:"


def read_yaml(text: str | bytes, problems: Problems) -> Node:
    """Return the root of a YAML text; raises InvalidDocument if it cannot be read at all."""
    size = len(text if isinstance(text, bytes) else text.encode(errors="surrogatepass"))
    if size > MAX_BYTES:
        what = f"the document has {size:,} bytes, and may have {MAX_BYTES:,}: split it"
        problems.stop(Place(), what)
    decoded = _decoded(text, problems) if isinstance(text, bytes) else text
    decoded = decoded.removeprefix("\ufeff")
    loader: _Loader | None = None
    try:
        loader = _Loader(decoded)
        root = loader.get_single_node()
    except _TooMuch as limit:
        problems.stop(_place(limit.mark), limit.what)
    except yaml.reader.ReaderError as problem:
        before = decoded[: problem.position]
        place = Place(before.count("\n") + 1, len(before) - before.rfind("\n"))
        problems.stop(place, f"the character U+{problem.character:04X} is not allowed in YAML")
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        told, about = problem.problem or "it ends too early", problem.context or ""
        # Some problems continue their context: "expected ..., but found ...".
        told = f"{about}, {told}" if told.startswith("but ") else f"{told} {about}".rstrip()
        what = f"this is not YAML: {told}"
        problems.stop(_place(mark), what.replace("\n", " "))
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        mark = loader.get_mark() if loader is not None else None
        problems.stop(_place(mark), f"this is not YAML: {problem}")
    finally:
        if loader is not None:
            loader.dispose()
    if root is None:
        problems.stop(Place(), "the document is empty: it needs at least `tasks`")
    return _Converter(decoded, problems).node(root)


def _decoded(stored: bytes, problems: Problems) -> str:
    try:
        return stored.decode()
    except UnicodeDecodeError as problem:
        before = stored[: problem.start].decode()
        place = Place(before.count("\n") + 1, len(before) - before.rfind("\n"))
        problems.stop(place, f"the byte {stored[problem.start]:#04x} is not UTF-8")


def _place(mark: Any) -> Place:
    return Place() if mark is None else Place(mark.line + 1, mark.column + 1)


class _TooMuch(Exception):
    def __init__(self, mark: Any, what: str) -> None:
        super().__init__(what)
        self.mark, self.what = mark, what


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Composes nodes; counts what aliases repeat, and the nesting."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._aliased = 0
        self._sizes: dict[int, int] = {}  # values of each complete node, by its identity
        self._kept: list[Any] = []  # a node that is freed would give its identity to another
        self._size = 0  # values of the nodes that are being composed

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            node = super().compose_node(parent, index)
            size = self._sizes.get(id(node))
            if size is None:
                raise _TooMuch(event.start_mark, f"the alias *{event.anchor} contains itself")
            self._aliased += size
            self._size += size
            if self._aliased > MAX_ALIASED:
                what = f"aliases repeat more than {MAX_ALIASED:,} values: write fewer of them"
                raise _TooMuch(event.start_mark, what)
            return node
        self._depth += 1
        if self._depth > MAX_DEPTH:
            what = f"this is nested too deep: {MAX_DEPTH} lists and maps inside each other at most"
            raise _TooMuch(event.start_mark, what)
        outer, self._size = self._size, 1
        node = super().compose_node(parent, index)
        self._sizes[id(node)] = self._size
        self._kept.append(node)
        self._size += outer
        self._depth -= 1
        return node


class _Converter:
    """Converts PyYAML's nodes to ours."""

    def __init__(self, text: str, problems: Problems) -> None:
        self._text, self._problems = text, problems

    def node(self, node: Any) -> Node:
        place, tag = _place(node.start_mark), _own_tag(node)
        if isinstance(node, yaml.SequenceNode):
            return ListNode(tuple(self.node(item) for item in node.value), place, tag)
        if isinstance(node, yaml.MappingNode):
            return MapNode(tuple(self._entries(node)), place, tag)
        return self._scalar(node, place, tag)

    def _entries(self, node: Any) -> list[tuple[Scalar, Node]]:
        entries: dict[str, tuple[Scalar, Node]] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._problems.add(_place(key.start_mark), "a key must be text")
                continue
            name = Scalar(key.value, key.value, _place(key.start_mark))
            if name.text in entries:
                first = entries[name.text][0].place
                what = f"the key `{name.text}` is given twice; it is also in line {first.line}"
                self._problems.add(name.place, what)
                continue
            entries[name.text] = name, self.node(value)
        return list(entries.values())

    def _scalar(self, node: Any, place: Place, tag: str) -> Scalar:
        text: str = node.value
        source = self._text[node.start_mark.index : node.end_mark.index]
        value: Any = text
        is_plain = node.style is None and not source.startswith("!")
        if is_plain:
            try:
                value = plain_scalar(text)
            except ValueError:  # Python refuses to convert thousands of digits
                self._problems.add(place, "the number has too many digits")
        elif node.tag.startswith(_STANDARD_TAG) and source.startswith("!"):
            tag = node.tag.replace(_STANDARD_TAG, "!!")
        if isinstance(value, float) and not math.isfinite(value):
            what = f"{text} is not a number that JSON can write; write it in quotes to mean text"
            self._problems.add(place, what)
            value = None
        return Scalar(value, text, place, tag, source)


def _own_tag(node: Any) -> str:
    """Return a tag that the author wrote."""
    return "" if node.tag.startswith(_STANDARD_TAG) else str(node.tag)

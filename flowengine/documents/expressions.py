"""Expressions in the values of a document: ``${inputs.day}``, read by AFL's parser.

A value that is one expression keeps its type; inside a text, expressions are joined with it.
``$${`` is the text ``${``. The names of a document are ``inputs.NAME`` and
``tasks.NAME.ATTRIBUTE``, or ``tasks["a-name"]["stdout"]`` for names that AFL does not know.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from flowengine.afl import read_expression
from flowengine.documents.problems import Place, Problems, listed
from flowengine.documents.yaml_nodes import ListNode, MapNode, Node, Scalar
from flowengine.errors import InvalidText
from flowengine.program.commands import FIELDS
from flowengine.program.standard import RESULT
from flowengine.scheduling.tick_values import NAMES as TICK_NAMES
from flowengine.scheduling.tick_values import TickValue

_Json = dict[str, Any]
_OPEN = "${"
MAX_EXPRESSIONS = 1_000  #: in one text; each costs a search of its place in the text
NULL: _Json = {"type": "Null"}


@dataclass(frozen=True)
class Scope:
    """The names that expressions of a document may use."""

    inputs: Collection[str]  #: in their order; a map or a set, which finds a name at once
    tasks: Collection[str]
    removed: frozenset[str] = frozenset()  #: tasks and inputs whose problems are already told
    commands: frozenset[str] = frozenset()  #: tasks whose result has the fields of a command


@dataclass
class Reader:
    """Reads the values of a document to program JSON; notes the tasks that they name."""

    scope: Scope
    problems: Problems
    used: dict[str, Place] = field(default_factory=dict)  #: tasks, with the place of the name

    def value(self, node: Node) -> _Json:
        """Return the expression of a value at any depth."""
        match node:
            case ListNode():
                return {"type": "ArrayLiteral", "elements": [self.value(i) for i in node.items]}
            case MapNode():
                entries = [{"key": k.text, "value": self.value(v)} for k, v in node.entries]
                return {"type": "MapLiteral", "entries": entries}
        return self.scalar(node)

    def scalar(self, node: Scalar) -> _Json:
        if not isinstance(node.value, str):
            return _literal(node.value)
        parts = list(self._parts(node))
        if len(parts) == 1:
            return parts[0]
        return {"type": "ConcatExpr", "operands": parts} if parts else _literal("")

    def _parts(self, node: Scalar) -> Iterator[_Json]:
        count = 0
        for start, text, is_expression in split(node.text):
            if not is_expression:
                yield _literal(text)
                continue
            place = _inside(node, start)
            count += 1
            if count > MAX_EXPRESSIONS:
                what = f"a text has at most {MAX_EXPRESSIONS:,} expressions: divide it"
                self.problems.add(place, what)
                return
            if text is None:
                self.problems.add(place, "`${` has no closing brace; write `$${` to mean the text")
                yield NULL
                continue
            try:
                yield self._resolved(read_expression(text), place)
            except InvalidText as problem:
                ahead = len(_OPEN) + problem.column - 1 if problem.line == 1 else 0
                at = _inside(node, start + ahead)
                hint = f"; {problem.hint}" if problem.hint else ""
                self.problems.add(at, f"in `${{{text.strip()}}}`: {problem.what}{hint}")
                yield NULL

    def _resolved(self, node: Any, place: Place) -> Any:
        """Replace the names of the document by those of the program."""
        if isinstance(node, list):
            return [self._resolved(part, place) for part in node]
        if not isinstance(node, dict):
            return node
        if node.get("type") in ("StepRef", "IndexExpr"):
            path = _path(node)
            if path is not None:
                return self._name(path, place)
        if node.get("type") == "InputRef":
            return self._name(["inputs", *node["path"]], place)
        return {key: self._resolved(part, place) for key, part in node.items()}

    def _name(self, path: list[str], place: Place) -> _Json:
        kind, *rest = path
        if kind == "inputs" and rest:
            return self._known("input", "inputs", rest, self.scope.inputs, "InputRef", place)
        if kind == "tasks" and rest:
            if rest[0] in self.scope.tasks:
                self.used.setdefault(rest[0], place)
            if rest[0] in self.scope.commands:
                rest = self._of_command(rest, place)
            return self._known("task", "tasks", rest, self.scope.tasks, "StepRef", place)
        shown = ".".join(path)
        if kind == "tick":
            what = "a value of the tick can only be the default of an input, or one of a schedule"
        elif kind in self.scope.tasks:
            what = f"did you mean `tasks.{shown}`?"
        elif kind in self.scope.inputs:
            what = f"did you mean `inputs.{shown}`?"
        else:
            what = "a name begins with `inputs.` or `tasks.`"
        self.problems.add(place, f"unknown name `{shown}`; {what}")
        return NULL

    def _of_command(self, path: list[str], place: Place) -> list[str]:
        """Return the path of a field of a command's result: `tasks.a.stdout`."""
        task, *fields = path
        if not fields or fields[0] == RESULT:
            return path
        if fields[0] not in FIELDS:
            hint = self.problems.near(fields[0], FIELDS) or f"; it has: {', '.join(FIELDS)}"
            what = f"the task `{task}` is a command, which has no `{fields[0]}`{hint}"
            self.problems.add(place, what)
        return [task, RESULT, *fields]

    def place_in(self, node: Scalar, offset: int) -> Place:
        """Return the place of a part of a scalar."""
        return _inside(node, offset)

    def _known(
        self,
        word: str,
        group: str,
        path: list[str],
        known: Collection[str],
        kind: str,
        place: Place,
    ) -> _Json:
        if path[0] in known:
            return {"type": kind, "path": path}
        if path[0] not in self.scope.removed:
            hint = self.problems.near(path[0], known) or f"; known are: {listed(known)}"
            self.problems.add(place, f"there is no {word} `{path[0]}`{hint}")
        return NULL


def constant(node: Node, problems: Problems) -> Any:
    """Return a value without expressions; a value of the tick stays one."""
    match node:
        case ListNode():
            return [constant(item, problems) for item in node.items]
        case MapNode():
            return {key.text: constant(value, problems) for key, value in node.entries}
    if not isinstance(node.value, str):
        return node.value
    parts = list(split(node.text))
    if not any(is_expression for _, _, is_expression in parts):
        return "".join(text or "" for _, text, _ in parts)
    found = (parts[0][1] or "").strip().split(".") if len(parts) == 1 else []
    if len(found) == 2 and found[0] == "tick" and found[1] in TICK_NAMES:
        return TickValue(found[1])
    names = ", ".join(f"${{tick.{name}}}" for name in TICK_NAMES)
    what = f"this must be a constant, or alone one of {names}"
    problems.add(node.place, what)
    return None


def has_tick(value: Any) -> bool:
    """Whether a constant has a value of the tick in it."""
    if isinstance(value, dict):
        return any(has_tick(each) for each in value.values())
    if isinstance(value, list):
        return any(has_tick(each) for each in value)
    return isinstance(value, TickValue)


def split(text: str) -> Iterator[tuple[int, str | None, bool]]:
    """Return the parts of a text: where each begins, its text, and whether it is an expression.

    The text of an expression without an end is None.
    """
    at, begin = 0, 0  # of the next search, and of the plain text
    plain: list[str] = []
    while (found := text.find(_OPEN, at)) >= 0:
        if found > at and text[found - 1] == "$":
            plain += (text[at : found - 1], _OPEN)
            at = found + len(_OPEN)
            continue
        plain.append(text[at:found])
        if joined := "".join(plain):
            yield begin, joined, False
        end = _end(text, found + len(_OPEN))
        if end is None:
            yield found, None, True
            return
        yield found, text[found + len(_OPEN) : end], True
        at = begin = end + 1
        plain = []
    plain.append(text[at:])
    if joined := "".join(plain):
        yield begin, joined, False


def _end(text: str, at: int) -> int | None:
    """Return the place of the brace that ends an expression; strings and maps have their own."""
    depth, in_string = 0, False
    while at < len(text):
        char = text[at]
        if in_string:
            at += char == "\\"
            in_string = char != '"'
        elif char == '"':
            in_string = True
        elif char == "{":
            depth += 1
        elif char == "}":
            if depth == 0:
                return at
            depth -= 1
        at += 1
    return None


def _inside(node: Scalar, offset: int) -> Place:
    """Return the place of a part of a scalar, if the scalar stands in the text as it is."""
    begin = node.source.find(node.text)
    if begin < 0 or "\n" in node.text:
        head = node.text[offset : offset + 40].partition("\n")[0]
        begin, offset = node.source.find(head) if head else -1, 0
        if begin < 0:
            return node.place
    before = node.source[: begin + offset]
    lines = before.count("\n")
    if not lines:
        return Place(node.place.line, node.place.column + len(before))
    return Place(node.place.line + lines, len(before) - before.rfind("\n"))


def _path(node: _Json) -> list[str] | None:
    """Return the path of a name, also of one with constant indexes: tasks["a"]["b"]."""
    if node.get("type") == "StepRef":
        return [str(part) for part in node["path"]]
    if node.get("type") != "IndexExpr":
        return None
    indexes: list[str] = []
    while node.get("type") == "IndexExpr":
        if node["index"].get("type") != "String":
            return None
        indexes.insert(0, node["index"]["value"])
        node = node["target"]
    is_group = node.get("type") == "StepRef" and node["path"] in (["tasks"], ["inputs"])
    return [*node["path"], *indexes] if is_group else None


def _literal(value: Any) -> _Json:
    match value:
        case None:
            return NULL
        case bool():
            return {"type": "Boolean", "value": value}
        case int():
            return {"type": "Int", "value": value}
        case float():
            return {"type": "Double", "value": value}
    return {"type": "String", "value": value}

"""The call that a command becomes: `run`, `sh` or `uv`.

Values reach a command as arguments, as its standard input, or in its environment. The text of a
shell is given to it as it is written: a value in it would be read as code, and is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from flowengine.documents.expressions import NULL, Reader
from flowengine.documents.models import Task
from flowengine.documents.problems import MAX_PROBLEMS, Place
from flowengine.documents.yaml_nodes import ListNode, MapNode, Node, Scalar
from flowengine.program.commands import RUN, SH, UV

_Json = dict[str, Any]
ACTIONS = {"run": RUN, "sh": SH, "uv": UV}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Where an expression of a document begins, ends, and names a value: the shell has no variables
#: with dots. One pass over the parts takes a time that grows with the text, not with its square.
_PART = re.compile(r"(\$\{)|([}\n])|\b(?:inputs|tasks)(?=\s*[.\[])")


def command_call(action: str, task: Task, node: MapNode, reader: Reader) -> tuple[str, _Json]:
    """Return the facet of a command and its arguments, as program JSON by name."""
    given = node.get(action)
    assert given is not None
    arguments: dict[str, _Json] = {}
    environment = node.get("env")
    if environment is not None:
        arguments["values" if action == "sh" else "env"] = _variables(environment, reader)
    for word in ("stdin", "directory"):
        if (value := node.get(word)) is not None:
            arguments[word] = _text(value, reader)
    if action == "run":
        arguments["command"] = _texts(given, reader)
        match given:
            case ListNode(items=[Scalar(value="") as program, *_]):
                reader.problems.add(program.place, "expected a program: its name is empty")
    elif action == "sh":
        assert isinstance(given, Scalar)
        _check_shell_text(given, reader)
        arguments["script"] = {"type": "String", "value": given.text}
    else:
        assert isinstance(given, MapNode)
        arguments |= _of_uv(task, given, reader)
    return ACTIONS[action], arguments


def _of_uv(task: Task, given: MapNode, reader: Reader) -> dict[str, _Json]:
    assert task.uv is not None
    made: dict[str, _Json] = {}
    for word, argument in (("script", "script"), ("directory", "directory"), ("uv", "program")):
        if (value := given.get(word)) is not None:
            made[argument] = _text(value, reader)
    for word in ("packages", "args"):
        if (value := given.get(word)) is not None:
            made[word] = _texts(value, reader)
    if task.uv.project:
        made["project"] = {"type": "Boolean", "value": True}
    return made


def _texts(node: Node, reader: Reader) -> _Json:
    items = node.items if isinstance(node, ListNode) else ()
    return {"type": "ArrayLiteral", "elements": [_text(item, reader) for item in items]}


def _text(node: Node, reader: Reader) -> _Json:
    """Return a value as text; numbers are text as they are written."""
    if not isinstance(node, Scalar):
        reader.problems.add(node.place, "expected text, or an expression")
        return NULL
    if not isinstance(node.value, str):
        return {"type": "String", "value": node.text}
    value = reader.scalar(node)
    if value["type"] in ("String", "ConcatExpr", "Null"):
        return value
    return {"type": "ConcatExpr", "operands": [{"type": "String", "value": ""}, value]}


def _variables(node: Node, reader: Reader) -> _Json:
    entries = []
    for key, value in node.entries if isinstance(node, MapNode) else ():
        if not _VARIABLE.fullmatch(key.text):
            what = f"`{key.text}` is no name of a variable: letters, digits and _"
            reader.problems.add(key.place, what)
        entries.append({"key": key.text, "value": _text(value, reader)})
    return {"type": "MapLiteral", "entries": entries}


def _check_shell_text(node: Scalar, reader: Reader) -> None:
    for start in islice(_expressions(node.text), MAX_PROBLEMS):
        place: Place = reader.place_in(node, start)
        what = (
            "a value in the text of a shell would be read as code: write "
            '`env: {name: "${…}"}`, and "$name" in the text'
        )
        reader.problems.add(place, what)


def _expressions(text: str) -> Iterator[int]:
    """Return where expressions with a value of the document begin."""
    start: int | None = None
    for part in _PART.finditer(text):
        if part[1]:
            start = part.start() if start is None else start
            continue
        if not part[2] and start is not None:
            yield start
        start = None

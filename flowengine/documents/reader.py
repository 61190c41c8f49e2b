"""Read a document: its workflow as program JSON, the facets it calls, and its schedules."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import date
from pathlib import PurePath
from typing import Any

from flowengine.documents.command_calls import ACTIONS
from flowengine.documents.expressions import NULL, Reader, Scope, constant, has_tick
from flowengine.documents.models import Document, Input
from flowengine.documents.order import Graph
from flowengine.documents.original_form import in_our_form
from flowengine.documents.problems import Place, Problems
from flowengine.documents.schedules import schedules_of, tick_inputs
from flowengine.documents.structure import validated
from flowengine.documents.task_calls import action_of, call_of
from flowengine.documents.yaml_nodes import MapNode, Node
from flowengine.documents.yaml_reader import read_yaml
from flowengine.program.deadlines import MIXIN as DEADLINE
from flowengine.program.run_limits import MIXIN as RUNS
from flowengine.program.standard import RESULT
from flowengine.scheduling import Schedule

_Json = dict[str, Any]
SUFFIXES = (".yml", ".yaml")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_TYPES: dict[str, Any] = {
    "text": "String",
    "integer": "Long",
    "number": "Double",
    "boolean": "Boolean",
    "date": "String",
    "list": {"type": "ArrayType", "elementType": "Json"},
    "map": "Json",
    "any": "Json",
}
_SCHEMAS: dict[str, _Json] = {
    "date": {
        "type": ["string", "null"],
        "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$",
        "format": "date",
    },
    "map": {"type": ["object", "null"]},
}
#: Of inputs with a description: the catalogue shows it in their schema.
_JSON_TYPES = {
    "text": "string",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
    "list": "array",
}
_MAX_TASK = 100  # characters of a name


@dataclass
class ReadDocument:
    """A document whose own parts are valid; the names of others are not resolved yet."""

    name: str  #: of its workflow
    file: str
    declaration: _Json  #: the workflow, as program JSON
    schedules: list[Schedule]
    problems: Problems
    calls: dict[str, list[tuple[Place, frozenset[str]]]] = field(default_factory=dict)
    children: dict[str, Place] = field(default_factory=dict)  #: workflows that tasks start
    places: dict[str, Place] = field(default_factory=dict)  #: by the linker's words for a part
    is_linkable: bool = True  #: without a cycle
    is_limited: bool = False  #: it limits its open runs
    description: str = ""


def name_of(path: str | PurePath) -> str:
    """Return the name of a document's workflow: its path in the folder, with dots."""
    relative = PurePath(path)
    return ".".join((*relative.parts[:-1], relative.stem))


def read_document(text: str | bytes, name: str, file: str = "") -> ReadDocument:
    """Read one document. Its problems are collected; raises InvalidDocument if nothing is left."""
    problems = Problems(file)
    for part in name.split("."):
        if not _NAME.fullmatch(part):
            what = (
                f"the name `{name}` of the workflow, from its path, needs letters, digits, _ or -"
            )
            problems.add(Place(), what)
            break
    root = in_our_form(read_yaml(text, problems), problems)
    document = validated(root, problems)
    assert isinstance(root, MapNode)
    return _Builder(name, file, root, document, problems).build()


class _Builder:
    def __init__(
        self, name: str, file: str, root: MapNode, document: Document, problems: Problems
    ) -> None:
        self._root, self._document, self._problems = root, document, problems
        self._tasks = _entries(root.get("tasks"))
        self._inputs = _entries(root.get("inputs"))
        removed = {*self._tasks, *self._inputs} - {*document.tasks, *document.inputs}
        self._removed = frozenset(removed)
        commands = {name for name, task in document.tasks.items() if task.run or task.sh or task.uv}
        names = document.inputs, document.tasks
        self._scope = Scope(*names, self._removed, frozenset(commands))
        self._made = ReadDocument(name, file, {}, [], problems)
        self._made.description = document.description or document.name or ""

    def build(self) -> ReadDocument:
        made, document = self._made, self._document
        filled = tick_inputs(self._root, self._problems)
        made.schedules = schedules_of(document, self._root, filled, self._problems)
        params = [self._param(name, each, filled) for name, each in document.inputs.items()]
        steps = self._steps()
        short = made.name.rpartition(".")[2]
        result = self._root.get("result")
        block: _Json = {"type": "AndThenBlock", "steps": steps}
        declared: _Json = {"type": "WorkflowDecl", "name": short, "params": params}
        if result is not None:
            value = Reader(self._scope, self._problems).value(result)
            call = {"target": made.name, "args": [{"name": RESULT, "value": value}]}
            block["yields"] = [{"type": "YieldStmt", "call": {"type": "CallExpr", **call}}]
            declared["returns"] = [{"name": RESULT, "type": "Json"}]
            made.places["yield"] = result.place
        options = {}
        if document.deadline is not None:
            options[DEADLINE] = {"name": "seconds", "value": document.deadline}
        if document.concurrency is not None and document.concurrency.runs is not None:
            options[RUNS] = {"name": "count", "value": document.concurrency.runs}
            made.is_limited = True
        if options:
            declared["mixins"] = [
                {"type": "MixinSig", "target": target, "args": [given]}
                for target, given in options.items()
            ]
        made.declaration = {**declared, "body": [block]}
        return made

    def _param(self, name: str, declared: Input, filled: dict[str, Any]) -> _Json:
        key, node = self._inputs[name]
        self._made.places[f"parameter {name!r}"] = key.place
        if not name.isidentifier():
            self._problems.add(key.place, f"the name of the input `{name}` is not an identifier")
        param: _Json = {"name": name, "type": _TYPES[declared.type]}
        if declared.type in _SCHEMAS or declared.description:
            param["schema"] = _schema(declared)
        default = node.get("default") if isinstance(node, MapNode) else None
        if default is not None and name not in filled:
            self._made.places[f"parameter {name!r}"] = default.place
            value = constant(default, self._problems)
            if declared.type == "date" and isinstance(value, str) and not _is_date(value):
                what = f"`{value}` is no date: write it as 2026-11-15"
                self._problems.add(default.place, what)
            param["default"] = NULL if has_tick(value) else _expression(value)
        return param

    def _steps(self) -> list[_Json]:
        graph = Graph(self._problems)
        steps = []
        for name, task in self._document.tasks.items():
            key, node = self._tasks[name]
            assert isinstance(node, MapNode)
            self._made.places[f"step {name!r}"] = key.place
            if not name or len(name) > _MAX_TASK or set(name) & set("./[]"):
                what = f"a name of a task has 1 to {_MAX_TASK} characters, and none of . / [ ]"
                self._problems.add(key.place, what)
                continue
            after = graph.after(name, task, node, self._scope.tasks, self._removed)
            action = action_of(task, key, node, self._problems)
            if not action:
                continue
            reader = Reader(self._scope, self._problems)
            made = self._made
            concurrency = self._document.concurrency
            call = call_of(action, task, node, reader, made.name, concurrency)
            graph.uses(name, reader.used)
            if action == "call" or action in ACTIONS:
                target = node.get(action)
                place = target.place if target is not None else key.place
                given = frozenset(argument["name"] for argument in call["args"])
                made.calls.setdefault(call["target"], []).append((place, given))
            if action == "workflow":
                target = node.get("workflow")
                assert task.workflow is not None
                assert target is not None
                made.children.setdefault(task.workflow, target.place)
            steps.append({"type": "StepStmt", "name": name, "call": call, "after": after})
        listed = {step["name"] for step in steps}
        self._made.is_linkable = not graph.has_cycle() and listed == set(self._document.tasks)
        return steps


def _schema(declared: Input) -> _Json:
    schema = dict(_SCHEMAS.get(declared.type, {}))
    if declared.type in _JSON_TYPES:
        schema["type"] = [_JSON_TYPES[declared.type], "null"]
    return {**schema, "description": declared.description} if declared.description else schema


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _entries(node: Node | None) -> dict[str, tuple[Any, Node]]:
    entries = node.entries if isinstance(node, MapNode) else ()
    return {key.text: (key, value) for key, value in entries}


def _expression(value: Any) -> _Json:
    if isinstance(value, list):
        return {"type": "ArrayLiteral", "elements": [_expression(each) for each in value]}
    if isinstance(value, dict):
        entries = [{"key": name, "value": _expression(each)} for name, each in value.items()]
        return {"type": "MapLiteral", "entries": entries}
    if value is None:
        return NULL
    kinds = {bool: "Boolean", int: "Int", float: "Double"}
    return {"type": kinds.get(type(value), "String"), "value": value}

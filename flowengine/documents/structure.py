"""Validate the structure of a document: every wrong key and value, each with its place.

A part with a problem is removed, and the rest validated again, so that the rest can be checked
further in the same pass.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from flowengine.documents.models import (
    Concurrency,
    Document,
    Input,
    Retry,
    ScheduleModel,
    Task,
    Uv,
    Wait,
)
from flowengine.documents.problems import Place, Problems
from flowengine.documents.yaml_nodes import ListNode, MapNode, Node, Scalar, found_kind, plain

_EACH = "*"
#: The model at each place of a document.
_MODELS: dict[tuple[str, ...], type[BaseModel]] = {
    (): Document,
    ("schedule",): ScheduleModel,
    ("schedule", _EACH): ScheduleModel,
    ("inputs", _EACH): Input,
    ("concurrency",): Concurrency,
    ("tasks", _EACH): Task,
    ("tasks", _EACH, "retry"): Retry,
    ("tasks", _EACH, "wait"): Wait,
    ("tasks", _EACH, "uv"): Uv,
}
_EACH_OF = frozenset({"inputs", "tasks", "schedule"})
#: Words of other systems for our keys.
_SYNONYMS = {
    "needs": "depends",
    "depends_on": "depends",
    "args": "with",
    "arguments": "with",
    "retries": "retry",
    "params": "inputs",
    "parameters": "inputs",
    "steps": "tasks",
    "jobs": "tasks",
    "outputs": "result",
    "command": "run",
    "cmd": "run",
}
_EXPECTED = {
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a map",
    "model_type": "a map",
    "model_attributes_type": "a map",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
}
_ROUNDS = 50


def validated(root: Node, problems: Problems) -> Document:
    """Return the valid parts of a document; raises InvalidDocument if there are none."""
    if not isinstance(root, MapNode):
        what = f"a document is a map with the key `tasks`, found {found_kind(plain(root))}"
        problems.stop(root.place, what)
    value = plain(root)
    for attempt in range(_ROUNDS):
        try:
            return Document.model_validate(value)
        except ValidationError as found:
            errors = found.errors(include_url=False, include_context=True)
            paths = [_Path(root, error["loc"]) for error in errors]
            if attempt == 0:  # later ones follow from what was removed
                for path, error in zip(paths, errors, strict=True):
                    problems.add(*_problem(path, error, problems))
            for path, error in zip(paths, errors, strict=True):
                known = path.known
                if error["type"] in ("missing", "too_short") and known[:1] in ((), ("tasks",)):
                    known = known[:2] if known[1:] else ()
                if not known:
                    raise problems.error() from None
                _remove(value, known)
    raise problems.error()


class _Path:
    """The place of an error: its location as keys that the text has."""

    def __init__(self, root: Node, location: tuple[int | str, ...]) -> None:
        self.known: tuple[int | str, ...] = ()
        self.node, self.key = root, None
        for part in location:
            if isinstance(self.node, MapNode) and isinstance(part, str):
                value = self.node.get(part)
                if value is None:
                    continue  # a word of pydantic for a member of a union, or a missing key
                self.key, self.node = self.node.key(part), value
            elif isinstance(self.node, ListNode) and isinstance(part, int):
                if part >= len(self.node.items):
                    continue
                self.key, self.node = None, self.node.items[part]
            else:
                continue  # a single value in place of a list
            self.known += (part,)

    key: Scalar | None
    node: Node


def _problem(path: _Path, error: Any, problems: Problems) -> tuple[Place, str]:
    kind, place, value = error["type"], path.node.place, plain(path.node)
    context = error.get("ctx") or {}
    if kind == "extra_forbidden":
        assert path.key is not None
        name = path.key.text
        known = _keys(path.known[:-1])
        hint = f"; did you mean `{_SYNONYMS[name]}`?" if _SYNONYMS.get(name) in known else ""
        hint = hint or problems.near(name, known) or f"; here are known: {', '.join(known)}"
        if name == "<<":
            hint = ": YAML 1.2 has no merge keys; repeat the values"
        return path.key.place, f"unknown key `{name}`{hint}"
    if kind == "missing":
        place = path.key.place if path.key is not None else place
        return place, f"the key `{error['loc'][-1]}` is missing"
    if kind in _EXPECTED:
        return place, f"expected {_EXPECTED[kind]}, found {found_kind(value)}"
    if kind == "literal_error":
        return place, f"expected {context.get('expected')}, found `{value}`"
    if kind == "too_short":
        return place, "this needs at least one entry"
    if kind == "value_error":
        return place, f"{context.get('error')}, found `{value}`"
    message = str(error["msg"])
    return place, f"{message[:1].lower()}{message[1:]}, found {found_kind(value)}"


def _keys(path: tuple[int | str, ...]) -> list[str]:
    """Return the known keys of the map at a path."""
    words = tuple(str(part) for part in path)
    if len(words) > 1 and words[0] in _EACH_OF:
        words = (words[0], _EACH, *words[2:])
    model = _MODELS.get(words)
    return [] if model is None else [f.alias or name for name, f in model.model_fields.items()]


def _remove(value: Any, path: tuple[int | str, ...]) -> None:
    *outer, last = path
    for part in outer:
        try:
            value = value[part]
        except (LookupError, TypeError):
            return  # already removed
    if isinstance(value, dict):
        value.pop(last, None)
    elif isinstance(value, list) and isinstance(last, int) and last < len(value):
        value[last] = None

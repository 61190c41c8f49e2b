"""The call that a task becomes: the facet, its arguments, and the options of its tries."""

from __future__ import annotations

from typing import Any

from flowengine.documents.command_calls import command_call
from flowengine.documents.expressions import NULL, Reader
from flowengine.documents.models import Concurrency, Task
from flowengine.documents.problems import Problems
from flowengine.documents.yaml_nodes import ListNode, MapNode, Node, Scalar, plain
from flowengine.program.deadlines import MIXIN as DEADLINE
from flowengine.program.function_options import (
    FunctionOptions,
    function_facet,
    function_of,
    function_problems,
)
from flowengine.program.limit_keys import RUN
from flowengine.program.standard import CHILD, NAMESPACE, SLEEP, SLEEP_UNTIL, WAIT_FOR
from flowengine.program.wait_times import answer_problem, until_problem
from flowengine.retention import EXPECTED_AGE, age_of

_Json = dict[str, Any]
ACTIONS = ("call", "workflow", "wait", "run", "sh", "uv")
_OF_TRIES = ("retry", "timeout")  #: keys of tasks that a worker tries
#: Keys that belong to some of the actions.
_FITS = {
    "with": ("call", "workflow"),
    "stdin": ("run", "sh", "uv"),
    "env": ("run", "sh", "uv"),
    "directory": ("run", "sh"),
    **dict.fromkeys(_OF_TRIES, ("call", "run", "sh", "uv")),
}


def action_of(task: Task, name: Scalar, node: MapNode, problems: Problems) -> str:
    """Return the one action of a task; empty if it has none or several."""
    given = [action for action in ACTIONS if node.key(action) is not None]
    known = ", ".join(f"`{action}`" for action in ACTIONS)
    if not given:
        problems.add(name.place, f"the task `{name.text}` does nothing: give it one of {known}")
    for extra in given[1:]:
        key = node.key(extra)
        assert key is not None
        what = f"the task `{name.text}` has `{given[0]}` and `{extra}`: give it one of them"
        problems.add(key.place, what)
    if len(given) != 1 or getattr(task, given[0]) is None:
        return ""
    if given == ["call"] and not _is_qualified(task.call or ""):
        place = _value(node, "call").place
        what = f"`{task.call}` is no name of an event facet: write it as module.facet"
        hint = "; an expression cannot choose it" if "${" in (task.call or "") else ""
        problems.add(place, f"{what}{hint}")
        return ""
    if (function := function_of(task.call or "")) is not None:
        for what in function_problems(FunctionOptions(function[1])):
            problems.add(_value(node, "call").place, f"`{task.call}`: {what}")
    for word, actions in _FITS.items():
        key = node.key(word)
        if key is not None and given[0] not in actions:
            cure = "; write `deadline`" if word == "timeout" else ""
            what = f"`{word}` belongs to {' and '.join(actions)}, not to `{given[0]}`{cure}"
            problems.add(key.place, what)
        elif key is not None and word in _OF_TRIES and function is not None:
            what = f"`{word}` belongs to the calls of a durable function: `{task.call}` is not "
            problems.add(key.place, f"{what}tried as a whole; give it to its event facets")
    return given[0]


def call_of(
    action: str,
    task: Task,
    node: MapNode,
    reader: Reader,
    workflow: str,
    concurrency: Concurrency | None,
) -> _Json:
    """Return the call of a task as program JSON."""
    given = node.get("with")
    arguments = given if isinstance(given, MapNode) else MapNode((), node.place)
    match action:
        case "call":
            assert task.call is not None
            made = _call(task.call, {key.text: reader.value(v) for key, v in arguments.entries})
            # The activations of a durable function have no limit: it may wait for months.
            if function_of(task.call) is None:
                return {**made, "mixins": _options(task, workflow, concurrency)}
        case "workflow":
            target = {"type": "String", "value": task.workflow}
            inputs = reader.value(arguments)
            waits = {"type": "Boolean", "value": True}
            made = _call(CHILD, {"workflow": target, "inputs": inputs, "waits": waits})
        case "wait":
            made = _wait(task, node, reader)
        case _:
            facet, values = command_call(action, task, node, reader)
            return {**_call(facet, values), "mixins": _options(task, workflow, concurrency)}
    return {**made, "mixins": _deadline(task)}


def _call(target: str, arguments: dict[str, _Json]) -> _Json:
    args = [{"name": name, "value": value} for name, value in arguments.items()]
    return {"type": "CallExpr", "target": target, "args": args}


def _wait(task: Task, node: MapNode, reader: Reader) -> _Json:
    assert task.wait is not None
    given = node.get("wait")
    assert given is not None
    parts: dict[str, Node] = {"time": given}
    if isinstance(given, MapNode):
        parts = {key.text: value for key, value in given.entries}
    kinds = [kind for kind in ("time", "until", "answer") if kind in parts]
    if len(kinds) != 1 or ("timeout" in parts and kinds != ["answer"]):
        what = "`wait` needs one of `time`, `until` and `answer`, and `timeout` only with `answer`"
        reader.problems.add(given.place, what)
        return _call(SLEEP, {"seconds": {"type": "Int", "value": 0}})
    if kinds == ["time"]:
        return _call(SLEEP, {"seconds": _seconds(parts["time"], reader)})
    kind, value = kinds[0], parts[kinds[0]]
    if (problem := _wait_problem(kind, value)) is not None:
        reader.problems.add(value.place, problem)
        return _call(SLEEP, {"seconds": {"type": "Int", "value": 0}})
    if kind == "until":
        return _call(SLEEP_UNTIL, {"until": reader.value(parts["until"])})
    answer: dict[str, _Json] = {"name": reader.value(parts["answer"])}
    if task.wait.timeout is not None:
        answer["timeout"] = {"type": "Double", "value": task.wait.timeout}
    return _call(WAIT_FOR, answer)


def _wait_problem(kind: str, node: Node) -> str | None:
    """Return the problem of a constant time, or of the constant name of an answer."""
    if isinstance(node, Scalar) and isinstance(node.value, str) and "${" in node.text:
        return None  # a run computes it
    value = node.value if isinstance(node, Scalar) else plain(node)
    problem = until_problem(value) if kind == "until" else answer_problem(value)
    return problem or None


def _is_qualified(name: str) -> bool:
    if (function := function_of(name)) is not None and function_facet(*function) == name:
        name = function[0]
    return all(part.isidentifier() for part in name.split("."))


def _value(node: MapNode, key: str) -> Node:
    found = node.get(key)
    assert found is not None
    return found


def _seconds(node: Node, reader: Reader) -> _Json:
    if isinstance(node, Scalar) and isinstance(node.value, str) and "${" not in node.text:
        try:
            return {"type": "Double", "value": age_of(node.text) / 1000}
        except ValueError:
            what = f"expected {EXPECTED_AGE}, or an expression, found `{node.text}`"
            reader.problems.add(node.place, what)
            return NULL
    if isinstance(node, ListNode | MapNode):
        reader.problems.add(node.place, f"expected {EXPECTED_AGE}")
        return NULL
    return reader.value(node)


def _options(task: Task, workflow: str, concurrency: Concurrency | None) -> list[_Json]:
    mixins: list[_Json] = []
    if task.retry is not None:
        given = task.retry.model_dump(exclude_defaults=True)
        mixins.append(_mixin(f"{NAMESPACE}.Retry", given))
    if task.timeout is not None:
        mixins.append(_mixin(f"{NAMESPACE}.Timeout", {"seconds": task.timeout}))
    if concurrency is not None and concurrency.tasks is not None:
        limit = {"key": f"{workflow}:{{{RUN}}}", "count": concurrency.tasks}
        mixins.append(_mixin(f"{NAMESPACE}.Limit", limit))
    return [*mixins, *_deadline(task)]


def _deadline(task: Task) -> list[_Json]:
    return [] if task.deadline is None else [_mixin(DEADLINE, {"seconds": task.deadline})]


def _mixin(target: str, values: dict[str, Any]) -> _Json:
    args = [{"name": name, "value": value} for name, value in values.items()]
    return {"type": "MixinCall", "target": target, "args": args}

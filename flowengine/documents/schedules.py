"""The schedules of a document: its times, and the inputs of the runs that they start."""

from __future__ import annotations

from typing import Any

from flowengine.documents.expressions import constant, has_tick
from flowengine.documents.models import Document
from flowengine.documents.problems import Place, Problems
from flowengine.documents.yaml_nodes import ListNode, MapNode, Node, Scalar
from flowengine.errors import InvalidSchedule
from flowengine.scheduling import Schedule

_WORDS = ("timezone", "every", "jitter", "overlap", "catch_up", "start", "end", "name", "inputs")


def tick_inputs(root: MapNode, problems: Problems) -> dict[str, Any]:
    """Return the inputs whose default is a value of the tick: a schedule fills them."""
    found: dict[str, Any] = {}
    for name, node in _inputs(root):
        default = node.get("default") if isinstance(node, MapNode) else None
        if default is None:
            continue
        value = constant(default, problems)
        if not has_tick(value):
            continue
        found[name.text] = value
        if root.key("schedule") is None:
            what = (
                f"the default of `{name.text}` is a value of the tick, but there is no `schedule`"
            )
            problems.add(default.place, what)
    return found


def schedules_of(
    document: Document, root: MapNode, filled: dict[str, Any], problems: Problems
) -> list[Schedule]:
    """Return the schedules of a document; each that cannot be read is a problem."""
    node = root.get("schedule")
    if node is None or not document.schedule:
        return []
    parts = list(node.items) if isinstance(node, ListNode) else [node]
    made = [
        _schedule(part, model, filled, document, problems)
        for part, model in zip(parts, document.schedule, strict=True)
    ]
    names = [schedule.name for schedule in made if schedule is not None]
    if len(names) > len(set(names)):
        problems.add(node.place, "two schedules have the same name: give each a `name`")
    return [schedule for schedule in made if schedule is not None]


def _schedule(
    node: Node, model: Any, filled: dict[str, Any], document: Document, problems: Problems
) -> Schedule | None:
    given = node if isinstance(node, MapNode) else MapNode((), node.place)
    options = model.model_dump(exclude_defaults=True, exclude={"inputs"})
    inputs = dict(filled)
    values = given.get("inputs")
    for name, value in values.entries if isinstance(values, MapNode) else ():
        inputs[name.text] = constant(value, problems)
        if name.text not in document.inputs:
            hint = problems.near(name.text, document.inputs)
            problems.add(name.place, f"the workflow has no input `{name.text}`{hint}")
    made = None
    for _ in range(len(_WORDS) + 1):  # an option that is refused is left out: others may be, too
        try:
            made = Schedule(options.get("cron"), **_without(options, "cron"), inputs=inputs)
            break
        except InvalidSchedule as problem:
            word, place = _option(given, problem.place)
            problems.add(place, str(problem))
            if word not in options:
                break
            options = _without(options, word)
            if word in ("cron", "every"):
                options["cron"] = "@daily"
    return made


def _without(options: dict[str, Any], word: str) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != word}


def _option(node: MapNode, option: str) -> tuple[str, Place]:
    """Return the option that an error names, and its place."""
    words = ["cron"] if "cron" in option else [word for word in _WORDS if word in option]
    for word in words:
        if (value := node.get(word)) is not None:
            return word, value.place
    return words[0] if words else "", node.place


def _inputs(root: MapNode) -> tuple[tuple[Scalar, Node], ...]:
    inputs = root.get("inputs")
    return inputs.entries if isinstance(inputs, MapNode) else ()

"""The conformance corpus: its cases, their handlers and their expected outcomes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from flowengine.program.standard import SCRIPT
from flowengine.testing import Outcome
from flowengine.testing.program_runner import NoAnswer
from tests.builders import Node

Case: TypeAlias = dict[str, Any]
Answer: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]

CASES: dict[str, Case] = {
    path.stem: json.loads(path.read_text())
    for path in sorted((Path(__file__).parent / "conformance").glob("*.json"))
}


def answers(case: Case) -> dict[str, Answer]:
    """How the case's event facets answer, by their qualified names."""
    return {name: _answer(entries) for name, entries in case["handlers"].items()}


def _answer(entries: list[dict[str, Any]]) -> Answer:
    def answer(params: dict[str, Any]) -> dict[str, Any]:
        for entry in entries:
            if _is_for(params, entry):
                if "error" in entry:
                    raise RuntimeError(entry["error"])
                return dict(entry["returns"])
        raise NoAnswer

    return answer


def _is_for(params: dict[str, Any], entry: dict[str, Any]) -> bool:
    return all(k in params and params[k] == v for k, v in entry.get("when", {}).items())


def event_facets(case: Case) -> dict[str, set[str]]:
    """The parameters of each event facet that the case declares, by its qualified name."""
    return dict(_declared(case["program"], ()))


def _declared(node: Node, path: tuple[str, ...]) -> Iterator[tuple[str, set[str]]]:
    for child in node.get("declarations", []):
        if child["type"] == "EventFacetDecl":
            yield ".".join((*path, child["name"])), {p["name"] for p in child.get("params", [])}
        yield from _declared(child, (*path, child["name"]))


def unanswered(case: Case) -> set[str]:
    """The event facets with a task that stays unanswered."""
    entries = case["handlers"]
    return {
        task["name"]
        for task in case["expect"].get("tasks", [])
        if not any(_is_for(task["data"], entry) for entry in entries.get(task["name"], []))
    }


def check(case: Case, outcome: Outcome) -> None:
    """Compare the outcome of a case with the expected one."""
    expected = case["expect"]
    assert outcome.status == expected["status"], outcome.error
    if "outputs" in expected:
        assert outcome.outputs == expected["outputs"]
    if "tasks" in expected:
        # The corpus has no tasks for scripts.
        found = [{"name": name, "data": data} for name, data in outcome.tasks if name != SCRIPT]
        assert sorted(found, key=_order) == sorted(expected["tasks"], key=_order)
    check_error(case, outcome.error or "")
    if "skipped" in expected:
        skipped = [path for path, state in outcome.steps.items() if state.endswith("Skipped")]
        assert sorted(p.rpartition(".")[2] for p in skipped) == sorted(expected["skipped"])


def check_error(case: Case, error: str) -> None:
    for text in case["expect"].get("error_contains", []):
        assert text.lower() in error.lower()


def _order(task: dict[str, Any]) -> tuple[str, str]:
    return task["name"], json.dumps(task["data"], sort_keys=True)

"""The conformance corpus: programs with expected outcomes, on each store, in any order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flowengine.errors import ProgramError
from flowengine.program.scripts import SCRIPT
from flowengine.settings import Settings
from flowengine.testing import Outcome, run_program
from flowengine.testing.programs import NoAnswer
from flowengine.worker.scripting import run_script

CASES = {
    path.stem: json.loads(path.read_text())
    for path in sorted((Path(__file__).parent.parent / "conformance").glob("*.json"))
}

SCRIPTS = Settings(scripts=True)


def handlers_of(case: dict[str, Any]) -> dict[str, Any]:
    def handler(answers: list[dict[str, Any]]) -> Any:
        def answer(params: dict[str, Any]) -> dict[str, Any]:
            for entry in answers:
                if all(k in params and params[k] == v for k, v in entry.get("when", {}).items()):
                    if "error" in entry:
                        raise RuntimeError(entry["error"])
                    return dict(entry["returns"])
            raise NoAnswer

        return answer

    found = {name: handler(answers) for name, answers in case["handlers"].items()}
    return {**found, SCRIPT: lambda task: {"result": _script(**task)}}


def _script(code: str, params: dict[str, Any]) -> dict[str, Any]:
    return run_script(code, params, seconds=SCRIPTS.script_seconds, size=SCRIPTS.script_bytes)


def run(case: dict[str, Any], url: str, **options: Any) -> Outcome:
    return run_program(
        case["program"],
        case["workflow"],
        case["inputs"],
        handlers_of(case),
        store_url=url,
        settings=SCRIPTS,
        **options,
    )


def check(case: dict[str, Any], outcome: Outcome) -> None:
    expected = case["expect"]
    assert outcome.status == expected["status"], outcome.error
    if "outputs" in expected:
        assert outcome.outputs == expected["outputs"]
    if "tasks" in expected:
        # How a script is run is our own matter; the corpus knows no task for it.
        found = [{"name": name, "data": data} for name, data in outcome.tasks if name != SCRIPT]
        assert sorted(found, key=_order) == sorted(expected["tasks"], key=_order)
    for text in expected.get("error_contains", []):
        assert text.lower() in (outcome.error or "").lower()
    if "skipped" in expected:
        skipped = [path for path, state in outcome.steps.items() if state.endswith("Skipped")]
        assert sorted(p.rpartition(".")[2] for p in skipped) == sorted(expected["skipped"])


def _order(task: dict[str, Any]) -> tuple[str, str]:
    return task["name"], json.dumps(task["data"], sort_keys=True)


@pytest.fixture(scope="session")
def shared_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """One database for all cases: runs must not see each other."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path_factory.mktemp('conformance')}/flow.db"
    return str(request.getfixturevalue("postgres").new_database())


WAYS = {
    "given": {},
    "forward": {"order": "any"},
    "reverse": {"order": "reverse"},
    "shuffled": {"order": "shuffle"},
    "doubled": {"redeliver": True},
}


@pytest.mark.parametrize("shared_url", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_a_program_ends_as_the_corpus_says(name: str, way: str, shared_url: str) -> None:
    case = CASES[name]
    options = {"order": case.get("order", "any"), "redeliver": case.get("redeliver", False)}
    options |= WAYS[way]
    if case["expect"]["status"] == "INVALID":
        with pytest.raises(ProgramError) as problem:
            run(case, shared_url, **options)
        for text in case["expect"].get("error_contains", []):
            assert text.lower() in str(problem.value).lower()
        return
    check(case, run(case, shared_url, **options))

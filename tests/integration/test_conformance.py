"""The conformance corpus: programs with expected outcomes, on each store, in any order."""

from __future__ import annotations

from typing import Any

import pytest

from flowengine.errors import ProgramError
from flowengine.program.standard import SCRIPT
from flowengine.settings import Settings
from flowengine.testing import Outcome, run_program
from flowengine.worker.script_runner import run_script
from tests.corpus import CASES, Case, answers, check, check_error

SCRIPTS = Settings(scripts=True)


def run(case: Case, url: str, **options: Any) -> Outcome:
    return run_program(
        case["program"],
        case["workflow"],
        case["inputs"],
        {**answers(case), SCRIPT: lambda task: {"result": _script(**task)}},
        store_url=url,
        settings=SCRIPTS,
        **options,
    )


def _script(code: str, params: dict[str, Any]) -> dict[str, Any]:
    return run_script(code, params, SCRIPTS)


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


#: PostgreSQL gets each order in the long run only: the order is the evaluator's affair.
IN_EVERY_WAY = [("sqlite", way) for way in WAYS] + [
    pytest.param(
        "postgresql", way, marks=[pytest.mark.chaos] if way in ("forward", "reverse") else []
    )
    for way in WAYS
]


@pytest.mark.parametrize(("shared_url", "way"), IN_EVERY_WAY, indirect=["shared_url"])
@pytest.mark.parametrize("name", CASES)
def test_a_program_ends_as_the_corpus_says(name: str, way: str, shared_url: str) -> None:
    case = CASES[name]
    options = {"order": case.get("order", "any"), "redeliver": case.get("redeliver", False)}
    options |= WAYS[way]
    if case["expect"]["status"] == "INVALID":
        with pytest.raises(ProgramError) as problem:
            run(case, shared_url, **options)
        check_error(case, str(problem.value))
        return
    check(case, run(case, shared_url, **options))

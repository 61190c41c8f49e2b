"""The conformance corpus: programs with expected outcomes, on each store, in any order."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
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
def urls(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], str]:
    """One database of each kind for all cases: runs must not see each other."""

    @cache
    def url(kind: str) -> str:
        if kind == "sqlite":
            return f"sqlite:///{tmp_path_factory.mktemp('conformance')}/flow.db"
        return str(request.getfixturevalue("postgres").new_database())

    return url


WAYS = {
    "given": {},
    "forward": {"order": "any"},
    "reverse": {"order": "reverse"},
    "shuffled": {"order": "shuffle"},
    "doubled": {"redeliver": True},
}


#: PostgreSQL gets each order in the long run only: the order is the evaluator's affair, and
#: doubled reports are refused by statements that other tests run on both. Most cases
#: are given in the forward order.
IN_THE_LONG_RUN = {
    *(("sqlite", "forward"), ("sqlite", "reverse")),
    *(("postgresql", way) for way in ("forward", "reverse", "shuffled", "doubled")),
}
IN_EVERY_WAY = [
    pytest.param(kind, way, marks=[pytest.mark.chaos] if (kind, way) in IN_THE_LONG_RUN else [])
    for kind in ("sqlite", "postgresql")
    for way in WAYS
]


@pytest.mark.parametrize(("kind", "way"), IN_EVERY_WAY)
@pytest.mark.parametrize("name", CASES)
def test_a_program_ends_as_the_corpus_says(
    name: str, way: str, kind: str, urls: Callable[[str], str]
) -> None:
    case, url = CASES[name], urls(kind)
    options = {"order": case.get("order", "any"), "redeliver": case.get("redeliver", False)}
    options |= WAYS[way]
    if case["expect"]["status"] == "INVALID":
        with pytest.raises(ProgramError) as problem:
            run(case, url, **options)
        check_error(case, str(problem.value))
        return
    check(case, run(case, url, **options))

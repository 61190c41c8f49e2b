"""The table of all laws, by their numbers."""

from __future__ import annotations

from typing import NamedTuple

from tests.integration.agents.laws import boxes, calls, ends, heads, inbox  # noqa: F401
from tests.integration.agents.laws.law import AFTER_RECOVERY, AT_REST, LAWS, Law, violations

__all__ = ["AFTER_RECOVERY", "AT_REST", "LAWS", "OF_TIME", "sentences", "violations"]


class Shown(NamedTuple):
    """A law about time and processes, which no two moments of rows can show."""

    sentence: str
    test: str


OF_TIME = {
    31: Shown(
        "a worker that lives keeps its turn, however long its model call takes",
        "a_slow_worker_reports",
    ),
    32: Shown(
        "two passes of recovery at once are as good as one",
        "test_s19_two_watchdogs_are_as_good_as_one",
    ),
}


def sentences() -> dict[str, str]:
    """Each law's sentence, with the name of the check or of the test that shows it."""
    checked: dict[int, Law] = {**LAWS, **AT_REST, **AFTER_RECOVERY}
    found = {number: (each.sentence, each.name) for number, each in checked.items()}
    found |= {number: (each.sentence, each.test) for number, each in OF_TIME.items()}
    return dict(found[number] for number in sorted(found))

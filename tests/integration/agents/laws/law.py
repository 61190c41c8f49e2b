"""A law: a number, a sentence, and the check of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.integration.agents.laws.rows import Check, Commit


class Law(NamedTuple):
    """A sentence about agents that every commit keeps; the check yields the violations."""

    number: int
    sentence: str
    check: Check
    name: str


LAWS: dict[int, Law] = {}
AT_REST: dict[int, Law] = {}  #: those that hold when nothing is left to do
AFTER_RECOVERY: dict[int, Law] = {}  #: those that hold after a pass of recovery


def law(number: int, sentence: str, table: dict[int, Law] = LAWS) -> Callable[[Check], Check]:
    """Enter a check into a table of laws, by its number."""

    def enter(check: Check) -> Check:
        assert number not in table, f"there are two laws {number}"
        table[number] = Law(number, sentence, check, check.__name__)
        return check

    return enter


def violations(commit: Commit, table: dict[int, Law] = LAWS) -> list[str]:
    """Return what a commit has broken, each with the law."""
    return [
        f"law {each.number} ({each.sentence}): {found}"
        for each in table.values()
        for found in each.check(commit)
    ]

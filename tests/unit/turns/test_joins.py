"""The status of a join, from those of its turns."""

from __future__ import annotations

import pytest

from flowengine.turns.joins import DEADLINE, Ended, join_status

S, F, C, T, P = "success", "failed", "canceled", "timeout", "partial"


@pytest.mark.parametrize(
    ("statuses", "fail_fast", "expected"),
    [
        ([S], False, S),
        ([S, S, S], True, S),
        ([S, F], False, P),
        ([S, T, C], False, P),
        ([F, T], False, F),
        ([T, C], False, T),
        ([C, C], False, P),
        ([P], False, P),
        ([S, F], True, F),
        ([S, C], True, F),
        ([T], True, F),
    ],
)
def test_the_status_of_a_join(statuses: list[str], fail_fast: bool, expected: str) -> None:
    assert join_status([Ended(each) for each in statuses], fail_fast=fail_fast) == expected


@pytest.mark.parametrize("fail_fast", [False, True])
def test_a_join_that_was_ended_by_its_deadline_has_timed_out(fail_fast: bool) -> None:
    ended = [Ended(S), Ended(F), Ended(T, DEADLINE)]
    assert join_status(ended, fail_fast=fail_fast) == T

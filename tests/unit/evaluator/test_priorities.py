"""The rank of a task: priorities that age."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flowengine.evaluator.priorities import rank_of

NOW = 1_700_000_000_000
_TIMES = st.integers(NOW, NOW + 10**12)
_PRIORITIES = st.integers(-1_000_000_000, 1_000_000_000)


def test_each_point_of_priority_is_worth_the_seconds_of_aging() -> None:
    assert rank_of(5, NOW, 60) == rank_of(0, NOW - 300_000, 60)
    assert rank_of(5, NOW + 301_000, 60) > rank_of(0, NOW, 60) > rank_of(5, NOW + 299_000, 60)
    assert rank_of(-1, NOW, 60) > rank_of(0, NOW, 60) > rank_of(1, NOW, 60)


@given(_TIMES, _TIMES, _PRIORITIES)
def test_tasks_of_one_priority_are_in_the_order_of_their_due_times(
    one: int, other: int, priority: int
) -> None:
    first, last = sorted((one, other))
    assert rank_of(priority, first, 60) <= rank_of(priority, last, 60)


@given(_TIMES, _PRIORITIES, st.floats(0.001, 1e12))
def test_a_rank_fits_its_column_and_follows_the_priority(
    due: int, priority: int, aging: float
) -> None:
    assert -(2**31) <= rank_of(priority, due, aging) < 2**31
    assert rank_of(priority + 1, due, aging) <= rank_of(priority, due, aging)

"""Another try, or the end: decided from the policy, the counts and the time alone."""

from __future__ import annotations

import pytest

from flowengine.evaluator.events import GiveUp, TryAgain, after_failure, after_loss
from flowengine.program.nodes import EventOptions, RetryPolicy


def options(max_losses: int = 3, **retry: float) -> EventOptions:
    return EventOptions(retry=RetryPolicy(**retry), max_losses=max_losses)  # type: ignore[arg-type]


def test_without_a_policy_the_first_failure_is_the_last() -> None:
    assert after_failure(EventOptions(), 1, 0, now=1000) == GiveUp("")


def test_a_failed_task_is_tried_again_as_the_policy_allows() -> None:
    three = options(attempts=3)
    assert isinstance(after_failure(three, 1, 0, now=0), TryAgain)
    assert isinstance(after_failure(three, 2, 0, now=0), TryAgain)
    assert after_failure(three, 3, 0, now=0) == GiveUp("failed 3 of 3 tries")


@pytest.mark.parametrize(
    ("try_number", "wait"), [(1, 500), (2, 1500), (3, 4500), (4, 5000), (9, 5000)]
)
def test_each_wait_is_longer_than_the_one_before_up_to_the_longest(
    try_number: int, wait: int
) -> None:
    policy = options(attempts=10, first_wait=0.5, factor=3.0, max_wait=5.0)
    assert after_failure(policy, try_number, 0, now=7) == TryAgain(try_number + 1, 0, 7 + wait)


def test_the_wait_stays_the_longest_one_after_thousands_of_tries() -> None:
    policy = options(attempts=10_000, max_wait=60.0)
    assert after_failure(policy, 5000, 0, now=0) == TryAgain(5001, 0, 60_000)


def test_a_failure_does_not_forget_losses() -> None:
    assert after_failure(options(attempts=2), 1, 2, now=0) == TryAgain(2, 2, 1000)


def test_a_loss_is_tried_again_at_once_and_counts_no_try() -> None:
    assert after_loss(options(attempts=1), 1, 0, now=500) == TryAgain(1, 1, 500)


def test_more_losses_than_allowed_are_the_end() -> None:
    assert after_loss(options(max_losses=3), 1, 2, now=0) == TryAgain(1, 3, 0)
    assert after_loss(options(max_losses=3), 1, 3, now=0) == GiveUp(
        "its worker died 4 times, 3 losses are allowed"
    )


def test_no_loss_at_all_may_be_allowed() -> None:
    assert isinstance(after_loss(options(max_losses=0), 1, 0, now=0), GiveUp)

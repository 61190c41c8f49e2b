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


# --- jitter, error classes, demanded waits ---


def test_jitter_shortens_each_wait_by_a_share_that_depends_on_the_step_alone() -> None:
    policy = options(attempts=3, first_wait=10.0, jitter=0.5)
    drawn = {f"step-{n}": after_failure(policy, 1, 0, 0, {}, f"step-{n}") for n in range(200)}
    waits = sorted(decision.due for decision in drawn.values() if isinstance(decision, TryAgain))
    assert len(waits) == 200
    assert waits[0] >= 5_000
    assert waits[-1] <= 10_000
    assert len(set(waits)) > 150
    assert after_failure(policy, 1, 0, 0, {}, "step-7") == drawn["step-7"]


def error(*kinds: str, **more: object) -> dict[str, object]:
    return {"type": kinds[0], "message": "no", "bases": list(kinds[1:]), **more}


def test_only_the_named_errors_and_their_subclasses_are_tried_again() -> None:
    policy = EventOptions(retry=RetryPolicy(attempts=3, on=OSError))
    refused = error("ConnectionRefusedError", "ConnectionError", "OSError", "Exception")
    assert isinstance(after_failure(policy, 1, 0, 0, refused), TryAgain)
    wrong = error("ValueError", "Exception")
    assert after_failure(policy, 1, 0, 0, wrong) == GiveUp("no further try after ValueError")


def test_an_excluded_error_is_not_tried_again_although_its_base_class_is() -> None:
    policy = EventOptions(retry=RetryPolicy(attempts=3, on=OSError, never_on=(PermissionError,)))
    denied = error("PermissionError", "OSError", "Exception")
    assert isinstance(after_failure(policy, 1, 0, 0, denied), GiveUp)
    assert isinstance(after_failure(policy, 1, 0, 0, error("OSError", "Exception")), TryAgain)


def test_a_demanded_wait_replaces_that_of_the_policy_and_counts_as_a_try() -> None:
    policy = EventOptions(retry=RetryPolicy(attempts=2, first_wait=1, on=OSError))
    busy = error("RetryAfter", "FlowengineError", "Exception", retry_after=90)
    assert after_failure(policy, 1, 0, 1_000, busy) == TryAgain(2, 0, 91_000)
    assert after_failure(policy, 2, 0, 1_000, busy) == GiveUp("failed 2 of 2 tries")


def test_a_demanded_wait_without_a_policy_says_which_option_is_missing() -> None:
    busy = error("RetryAfter", retry_after=90)
    decision = after_failure(EventOptions(), 1, 0, 0, busy)
    assert decision == GiveUp("no further try: the facet has no retry=Retry(attempts=…)")

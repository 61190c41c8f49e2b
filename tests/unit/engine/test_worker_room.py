"""How much a server with limits may claim."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flowengine.engine.worker_limits import Room, room
from flowengine.store.worker_limits import Limits

counts = st.integers(1, 5)
limits = st.builds(Limits, st.none() | counts, st.none() | counts)
held = st.dictionaries(st.sampled_from("abcdefgh"), counts)


@given(limits, held, counts, st.lists(st.sampled_from("abcdefghijkl")))
def test_whatever_is_claimed_no_limit_is_newly_exceeded(
    limits: Limits, held: dict[str, int], most: int, due: list[str]
) -> None:
    allowed = room(limits, held, most)
    claimable = [run for run in due if allowed.runs is None or run in allowed.runs]
    claimed = [] if allowed.is_none else claimable[: allowed.tasks]
    assert len(claimed) <= most
    if claimed and limits.tasks is not None:
        assert sum(held.values()) + len(claimed) <= limits.tasks
    if limits.workflows is not None:
        new = set(claimed) - held.keys()
        assert not new or len(held) + len(new) <= limits.workflows


@given(held, counts)
def test_a_server_without_limits_claims_what_it_asks_for(held: dict[str, int], most: int) -> None:
    assert room(Limits(), held, most) == Room(most)


def test_at_the_limit_of_runs_only_those_that_are_held_get_more_tries() -> None:
    assert room(Limits(workflows=2), {"a": 3, "b": 1}, 5) == Room(5, ["a", "b"])
    assert room(Limits(tasks=6, workflows=2), {"a": 3, "b": 1}, 5) == Room(2, ["a", "b"])
    assert room(Limits(workflows=3), {"a": 3, "b": 1}, 5) == Room(1), "it may be of a new run"


def test_after_the_limit_was_lowered_some_runs_get_no_more_tries() -> None:
    assert room(Limits(workflows=1), {"b": 1, "a": 1, "c": 1}, 5) == Room(5, ["a"])
    assert room(Limits(tasks=2), {"a": 3}, 5).is_none

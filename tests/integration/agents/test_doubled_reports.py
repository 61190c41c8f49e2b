"""Reports and messages from many threads: each counts once, and where it belongs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.integration.agents.clerks import Office, calls, clerk, plan
from tests.integration.threads import in_threads

THREADS = 8


def report_in_threads(turn: Any, call_id: str) -> list[bool]:
    """Report eight results of one call at the same moment; return which were duplicates."""
    reports = [partial(turn.report, call_id, f"of thread {n}") for n in range(THREADS)]
    return in_threads(reports)


def test_a_result_that_is_reported_eight_times_is_applied_once(desk: Office) -> None:
    plan.reset({"twice": [calls("search", "measure"), "done"]})
    turn = clerk.send("twice")
    first, second = desk.until_suspended(turn)
    for call in (first, second):
        assert sorted(report_in_threads(turn, call.id)) == [False] + [True] * 7
    desk.work()
    assert turn.result(timeout=5) == "done"
    results = desk.results(turn)
    assert len(results) == 2
    assert all(str(result).startswith("of thread") for result in results)
    assert plan.asked == [("twice", 0), ("twice", 1)]
    desk.check(turn)


def _expired(desk: Office, turn: Any) -> None:
    desk.tick(31)
    desk.tick()


def _stopped(desk: Office, turn: Any) -> None:
    turn.stop("enough")
    desk.tick()


def _in_the_next_turn(desk: Office, turn: Any) -> None:
    _stopped(desk, turn)
    following = clerk.at("ada").send("next")
    desk.until_suspended(following)


@pytest.mark.parametrize("happens", [_expired, _stopped, _in_the_next_turn])
def test_results_that_come_too_late_are_applied_nowhere(
    desk: Office, happens: Callable[[Office, Any], None]
) -> None:
    plan.reset({"late": [calls("hurried"), "done"], "next": [calls("search"), "fine"]})
    turn = clerk.at("ada").send("late")
    (call,) = desk.until_suspended(turn)
    happens(desk, turn)
    before = desk.head("ada")
    cards = desk.rows("SELECT count(*) FROM flowengine_box_card")
    assert report_in_threads(turn, call.id) == [True] * THREADS
    desk.flow.watchdog()
    assert desk.head("ada") == before
    assert desk.rows("SELECT count(*) FROM flowengine_box_card") == cards
    desk.work()
    assert "of thread" not in str([card.content for card in desk.cards(turn)])
    desk.check(turn)


def test_messages_from_eight_threads_are_eight_turns_one_after_the_other(desk: Office) -> None:
    texts = [f"text {n}" for n in range(THREADS)]
    plan.reset({text: [f"done {text}"] for text in texts})
    turns = in_threads([partial(clerk.at("ada").send, text) for text in texts])
    desk.work()
    assert [turn.result(timeout=5) for turn in turns] == [f"done {text}" for text in texts]
    by_epoch = sorted((turn.info() for turn in turns), key=lambda info: info.epoch)
    assert len({info.epoch for info in by_epoch}) == THREADS
    enqueued = [info.enqueued for info in by_epoch]
    assert enqueued == sorted(enqueued)  # dispatched in the order of their enqueueing
    for before, after in itertools.pairwise(by_epoch):
        assert before.finished is not None
        assert after.started is not None
        assert before.finished <= after.started
    desk.check(*turns)


def test_one_key_from_eight_threads_is_one_turn(desk: Office) -> None:
    plan.reset({"once": ["done"]})
    ada = clerk.at("ada").options(key="mail-17")
    turns = in_threads([partial(ada.send, "once")] * THREADS)
    assert len({turn.id for turn in turns}) == 1
    assert sorted(turn.duplicate for turn in turns) == [False] + [True] * 7
    desk.work()
    assert plan.asked == [("once", 0)]
    desk.check(turns[0])


def test_a_stop_and_a_result_at_the_same_moment_end_the_turn_once(desk: Office) -> None:
    plan.reset({"race": [calls("search"), "done"]})
    turn = clerk.send("race")
    (call,) = desk.until_suspended(turn)
    acts: list[Callable[[], Any]] = [partial(turn.report, call.id, "r"), partial(turn.stop, "s")]
    in_threads(acts * 4)
    desk.work()
    assert turn.info().status == "canceled"  # a stop always comes through
    desk.check(turn)

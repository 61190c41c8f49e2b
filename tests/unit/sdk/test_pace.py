"""How often a poller asks, by a clock that the test moves."""

from __future__ import annotations

from flowengine.sdk.pace import PollPace

MINUTE = 60.0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def polls(pace: PollPace, clock: Clock, seconds: float, *, is_notified: bool) -> int:
    """Let an idle poller poll for that time; return how often it asks."""
    ends, asked = clock.now + seconds, 0
    while (then := clock.now + pace.pause(is_notified=is_notified)) <= ends:
        clock.now, asked = then, asked + 1
    clock.now = ends
    return asked


def test_an_idle_poller_that_is_notified_asks_twice_a_minute() -> None:
    clock = Clock()
    pace = PollPace(2.0, 10.0, clock)
    polls(pace, clock, 10.0, is_notified=True)  # it is known now
    assert [polls(pace, clock, MINUTE, is_notified=True) for _ in range(3)] == [2, 2, 2]


def test_work_does_not_make_a_notified_poller_ask_more_often() -> None:
    clock = Clock()
    pace = PollPace(2.0, 0.0, clock)
    pace.worked()
    assert polls(pace, clock, MINUTE, is_notified=True) == 2


def test_a_new_poller_asks_at_its_interval_until_others_know_of_it() -> None:
    clock = Clock()
    pace = PollPace(2.0, 10.0, clock)
    assert polls(pace, clock, 10.0, is_notified=True) == 5


def test_a_poller_that_is_not_notified_asks_less_and_less_often() -> None:
    clock = Clock()
    pace = PollPace(2.0, 10.0, clock)
    pauses = [pace.pause(is_notified=False) for _ in range(20)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.02, 2.0)
    pace.worked()
    assert pace.pause(is_notified=False) == 0.02


def test_the_interval_is_never_longer_than_the_configured_one() -> None:
    pace = PollPace(0.01, 10.0, Clock())
    assert {pace.pause(is_notified=False) for _ in range(5)} == {0.01}


def test_a_long_interval_is_kept_by_a_notified_poller() -> None:
    assert PollPace(300.0, 0.0, Clock()).pause(is_notified=True) == 300.0

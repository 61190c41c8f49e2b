"""Decisions about a schedule that is due: catching up, overlap, and the bounds of both."""

from __future__ import annotations

from typing import Any

import pytest

from flowengine.scheduling import Begin, Queue, Reason, Replace, Schedule, Skip, Timetable, decide
from flowengine.scheduling.decisions import MAX_RUNS, Action

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
T0 = 1_794_700_800_000  #: midnight, in UTC


def actions(
    now: int, *, running: bool = False, waiting: bool = False, nominal: int = T0, **options: Any
) -> tuple[Action, ...]:
    timetable = Timetable("shop.daily", Schedule(every=options.pop("every", "10m"), **options))
    return decide(timetable, nominal, now, running=running, waiting=waiting).actions


def test_a_tick_that_is_due_begins_a_run_and_the_next_one_is_named() -> None:
    timetable = Timetable("shop.daily", Schedule(every="10m"))
    decision = decide(timetable, T0, T0 + 3 * SECOND, running=False, waiting=False)
    assert decision.actions == (Begin(T0),)
    assert (decision.next_tick, decision.due) == (T0 + 10 * MINUTE, T0 + 10 * MINUTE)


def test_after_the_end_no_tick_follows() -> None:
    timetable = Timetable("shop.daily", Schedule(every="10m", end="2026-11-15T00:00Z"))
    decision = decide(timetable, T0, T0, running=False, waiting=False)
    assert decision.next_tick is None


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        ("none", (Skip(T0, T0 + 30 * MINUTE, 4, Reason.LATE),)),
        ("last", (Skip(T0, T0 + 20 * MINUTE, 3, Reason.LATE), Begin(T0 + 30 * MINUTE))),
        ("all", tuple(Begin(T0 + n * 10 * MINUTE) for n in range(4))),
    ],
)
def test_missed_ticks_are_caught_up_as_the_schedule_says(
    catch_up: str, expected: tuple[Action, ...]
) -> None:
    assert actions(T0 + 35 * MINUTE, catch_up=catch_up) == expected


@pytest.mark.parametrize(("late", "runs"), [(MINUTE, True), (MINUTE + 1, False)])
def test_a_tick_has_a_minute_of_grace(late: int, runs: bool) -> None:
    assert (actions(T0 + late) == (Begin(T0),)) is runs


def test_ticks_on_time_run_beside_missed_ones() -> None:
    assert actions(T0 + 10 * MINUTE, catch_up="last") == (
        Skip(T0, T0, 1, Reason.LATE),
        Begin(T0 + 10 * MINUTE),
    )


@pytest.mark.parametrize(
    ("overlap", "running", "waiting", "expected"),
    [
        ("allow", True, False, (Begin(T0), Begin(T0 + SECOND))),
        ("skip", False, False, (Begin(T0), Skip(T0 + SECOND, T0 + SECOND, 1, Reason.RUNNING))),
        ("skip", True, False, (Skip(T0, T0 + SECOND, 2, Reason.RUNNING),)),
        ("queue", False, False, (Begin(T0), Queue(T0 + SECOND))),
        ("queue", True, False, (Queue(T0), Skip(T0 + SECOND, T0 + SECOND, 1, Reason.WAITING))),
        ("queue", True, True, (Skip(T0, T0 + SECOND, 2, Reason.WAITING),)),
        ("replace", False, False, (Skip(T0, T0, 1, Reason.REPLACED), Begin(T0 + SECOND))),
        ("replace", True, False, (Skip(T0, T0, 1, Reason.REPLACED), Replace(T0 + SECOND))),
        ("replace", False, True, (Skip(T0, T0, 1, Reason.REPLACED), Replace(T0 + SECOND))),
    ],
)
def test_an_open_run_is_treated_as_the_schedule_says(
    overlap: str, running: bool, waiting: bool, expected: tuple[Action, ...]
) -> None:
    found = actions(T0 + SECOND, every="1s", overlap=overlap, running=running, waiting=waiting)
    assert found == expected


@pytest.mark.parametrize("overlap", ["allow", "skip", "queue", "replace"])
@pytest.mark.parametrize("catch_up", ["none", "last", "all"])
@pytest.mark.parametrize("times", [{"every": "1s"}, {"cron": "* * * * * *"}])
def test_a_schedule_of_every_second_that_was_paused_for_a_year_has_few_actions(
    overlap: Any, catch_up: Any, times: dict[str, str]
) -> None:
    schedule = Schedule(**times, overlap=overlap, catch_up=catch_up, jitter="2s")  # type: ignore[arg-type]
    timetable, now = Timetable("busy", schedule), T0 + 365 * DAY
    decision = decide(timetable, T0, now, running=False, waiting=False)
    assert 0 < len(decision.actions) <= MAX_RUNS + 1
    assert decision.actions[0].nominal == T0
    assert decision.next_tick is not None
    assert now - 3 * SECOND <= decision.next_tick <= now + SECOND
    assert decision.due is not None
    if catch_up == "all" and overlap == "allow":
        assert len(decision.actions) == MAX_RUNS + 1


def test_no_tick_is_both_skipped_and_run_and_none_is_left_out() -> None:
    for count in (99, 100, 101, 102, 250):
        now = T0 + (count - 1) * MINUTE
        told = actions(now, every="1m", catch_up="all")
        runs = [action.nominal for action in told if isinstance(action, Begin)]
        assert runs == [now - n * MINUTE for n in reversed(range(min(count, MAX_RUNS)))]
        skips = [action for action in told if isinstance(action, Skip)]
        assert bool(skips) == (count > MAX_RUNS)
        if skips:
            assert (skips[0].nominal, skips[0].last) == (T0, runs[0] - MINUTE)


def test_the_jitter_is_the_same_in_every_process_and_differs_by_schedule_and_tick() -> None:
    schedule = Schedule("@hourly", jitter="10m")
    delays = {
        (name, hour): Timetable(name, schedule).due_time(T0 + hour * HOUR) - T0 - hour * HOUR
        for name in ("one", "two")
        for hour in range(20)
    }
    assert (
        delays[("one", 0)] == 296_346
    )  # a constant: all processes must agree, also those of another version
    assert all(0 <= delay <= 10 * MINUTE for delay in delays.values())
    assert len(set(delays.values())) == len(delays)

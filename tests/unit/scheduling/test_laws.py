"""Laws of timetables, for schedules, zones and moments at random."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from flowengine.scheduling import Reason, Schedule, Skip, Timetable, decide
from flowengine.scheduling.decisions import continues

ZONES = (
    "UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/Sao_Paulo", "Africa/Casablanca",
    "Asia/Kathmandu", "Pacific/Apia", "America/St_Johns",
)  # fmt: skip
numbers = st.integers(0, 59).map(str)
minutes = st.one_of(
    st.just("*"), numbers, st.integers(1, 40).map("*/{}".format), st.just("0,15,45")
)
hours = st.one_of(
    st.just("*"), st.integers(0, 23).map(str), st.just("*/3"), st.just("1-3"), st.just("0,2,23")
)
days = st.sampled_from(["* * *", "* * mon-fri", "L * *", "29 2 *", "1 */3 *", "* * 5#2"])
five_fields = st.builds("{} {} {}".format, minutes, hours, days)
crons = st.one_of(five_fields, st.builds("{} {}".format, minutes, five_fields))
moments = st.integers(
    round(datetime(2005, 1, 1, tzinfo=UTC).timestamp()),
    round(datetime(2036, 1, 1, tzinfo=UTC).timestamp()),
).map(lambda seconds: seconds * 1000)
timetables = st.one_of(
    st.builds(lambda cron, zone: Schedule(cron, timezone=zone), crons, st.sampled_from(ZONES)),
    st.builds(lambda seconds: Schedule(every=seconds), st.integers(1, 200_000)),
).map(lambda schedule: Timetable("shop.daily", schedule))


@given(timetables, moments)
def test_ticks_only_grow(timetable: Timetable, moment: int) -> None:
    for _ in range(20):
        found = timetable.after(moment)
        assert found is not None
        assert found > moment
        moment = found


@given(timetables, moments, st.floats(0, 1, exclude_max=True))
def test_the_next_tick_does_not_depend_on_when_one_asks(
    timetable: Timetable, moment: int, share: float
) -> None:
    tick = timetable.after(moment)
    assert tick is not None
    following = timetable.after(tick)
    assert following is not None
    assert timetable.after(tick + int(share * (following - tick))) == following


@given(timetables, moments)
def test_the_tick_before_is_the_one_that_the_next_follows(
    timetable: Timetable, moment: int
) -> None:
    tick = timetable.after(moment)
    assert tick is not None
    following = timetable.after(tick)
    assert following is not None
    assert timetable.before(following, tick) == tick
    assert timetable.before(following + 1, tick) == following
    assert timetable.before(tick, tick) is None


@given(timetables, moments, st.integers(0, 3_000_000), st.sampled_from(["none", "last", "all"]))
def test_a_decision_covers_every_due_tick_once_and_in_order(
    timetable: Timetable, moment: int, seconds: int, catch_up: str
) -> None:
    stored = timetable.schedule.as_json() | {"catch_up": catch_up}
    timetable = Timetable("shop.daily", Schedule.from_json(stored))
    first = timetable.after(moment)
    assert first is not None
    now = first + seconds * 1000
    decision = decide(timetable, first, now, running=False, waiting=False)
    assert decision.actions[0].nominal == first
    at = None
    for action in decision.actions:
        assert at is None or action.nominal == timetable.after(at)
        at = getattr(action, "last", action.nominal)
    assert at is not None
    assert decision.next_tick == timetable.after(at)
    assert decision.next_tick is None or decision.next_tick > now


@given(timetables)
def test_a_stored_schedule_is_read_as_it_was(timetable: Timetable) -> None:
    assert Schedule.from_json(timetable.schedule.as_json()) == timetable.schedule


@given(timetables, moments, st.integers(1, 30))
def test_a_row_of_skipped_ticks_is_continued_by_the_next_tick_alone(
    timetable: Timetable, moment: int, number: int
) -> None:
    """So the ticks of a row are all those from its first to its last, each once."""
    ticks = [moment]
    for _ in range(number + 2):
        found = timetable.after(ticks[-1])
        assert found is not None
        ticks.append(found)
    first, *others = ticks[1:]
    last = first
    for at, nominal in enumerate(others):
        skip = Skip(nominal, nominal, 1, Reason.RUNNING)
        assert continues(timetable, last, "running", skip)
        assert not continues(timetable, last, "waiting", skip)
        for later in others[at + 1 : at + 3]:
            assert not continues(timetable, last, "running", replace(skip, nominal=later))
        last = nominal

"""Schedules: their ticks, the runs that these start, and what happens to runs that overlap."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest
from sqlalchemy import text

from flowengine import InvalidInputs, event_facet, workflow
from flowengine.engine import schedules
from flowengine.engine.due_schedules import DueSchedules
from flowengine.errors import InvalidSchedule, ScheduleRefused, UnknownSchedule
from flowengine.scheduling import Schedule, shown_time, tick
from flowengine.settings import Settings
from flowengine.store.schedules import Schedules as ScheduleRows
from flowengine.testing import Flow

MINUTE = 60_000


@event_facet(name="clock.note")
def note(day: str) -> str:
    return f"noted {day}"


@workflow(name="clock.daily")
def daily(day: str = "today") -> str:
    return note(day)


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    with Flow(store_url=database_url) as flow:
        flow.clock.now = 1_700_006_400_000  # 2023-11-15, midnight in UTC
        yield flow


def put(flow: Flow, cron: str | None = None, **options: Any) -> None:
    flow.engine.schedules.put(daily.program(), daily.name, Schedule(cron, **options))


def outcomes(flow: Flow, name: str = "clock.daily") -> list[tuple[str, str | None]]:
    """Outcome and reason of the ticks, the oldest first."""
    ticks = flow.engine.schedules.ticks(name, most=1000)
    return [(each.outcome, each.reason) for each in reversed(ticks)]


def open_runs(flow: Flow) -> list[str]:
    return [run.id for run in flow.engine.list(limit=1000) if not run.is_final]


def test_a_due_tick_starts_one_run_with_its_key_and_its_inputs(flow: Flow) -> None:
    put(flow, "0 6 * * *", timezone="Europe/Berlin", inputs={"day": tick.date})
    flow.clock.advance(hours=4, minutes=59)
    flow.watchdog()
    assert flow.engine.list() == []
    flow.clock.advance(minutes=1)
    flow.watchdog()
    flow.watchdog()
    (run,) = flow.engine.list()
    key = "tick:clock.daily@2023-11-15T05:00:00Z"
    assert run.key == key
    flow.settle()
    assert flow.engine.get(run.id).outputs == {"result": "noted 2023-11-15"}
    (told,) = flow.engine.schedules.ticks("clock.daily")
    assert (told.outcome, told.run_id, shown_time(told.nominal)) == (
        *("started", run.id),
        "2023-11-15T05:00:00Z",
    )
    info = flow.engine.schedules.get("clock.daily")
    assert info.next_tick == told.nominal + 24 * 60 * MINUTE


def test_missed_ticks_are_caught_up_or_recorded_as_skipped(flow: Flow) -> None:
    put(flow, every="10m", name="none")
    put(flow, every="10m", name="last", catch_up="last")
    put(flow, every="10m", name="all", catch_up="all")
    flow.clock.advance(minutes=35)
    flow.watchdog()
    found = {name: Counter(each for each, _ in outcomes(flow, name)) for name in ("none", "last")}
    assert found == {"none": {"skipped": 1}, "last": {"skipped": 1, "started": 1}}
    assert outcomes(flow, "all") == [("started", None)] * 3
    (skipped,) = flow.engine.schedules.ticks("none")
    assert (skipped.tick_count, skipped.last, skipped.reason) == (
        *(3, skipped.nominal + 20 * MINUTE),
        "late",
    )


def test_a_schedule_of_every_second_paused_for_a_year_resumes_with_few_rows(flow: Flow) -> None:
    put(flow, every="1s", catch_up="all")
    flow.engine.schedules.pause("clock.daily", actor="eva", reason="the shop is closed")
    flow.watchdog()
    flow.clock.advance(hours=365 * 24)
    flow.watchdog()
    assert outcomes(flow) == []
    flow.engine.schedules.resume("clock.daily", actor="eva")
    flow.watchdog()
    assert Counter(each for each, _ in outcomes(flow)) == {"skipped": 1, "started": 100}
    assert len(flow.engine.list(limit=1000)) == 100


def test_a_pause_has_an_actor_and_a_reason(flow: Flow) -> None:
    put(flow, every="1m")
    paused = flow.engine.schedules.pause("clock.daily", actor="eva", reason="a move")
    assert (paused.state, paused.actor, paused.reason) == ("paused", "person:eva", "a move")
    assert paused.due is None
    flow.clock.advance(minutes=5)
    flow.watchdog()
    assert flow.engine.list() == []
    resumed = flow.engine.schedules.resume("clock.daily", actor="token:ci")
    assert (resumed.state, resumed.actor, resumed.reason) == ("active", "token:ci", None)
    assert resumed.next_tick == paused.next_tick


def test_runs_overlap_if_that_is_allowed(flow: Flow) -> None:
    put(flow, every="1m")
    for _ in range(3):
        flow.clock.advance(minutes=1)
        flow.watchdog()
    assert len(open_runs(flow)) == 3


def test_a_tick_is_skipped_while_a_run_is_open(flow: Flow) -> None:
    put(flow, every="1m", overlap="skip")
    for _ in range(2):
        flow.clock.advance(minutes=1)
        flow.watchdog()
    assert outcomes(flow) == [("started", None), ("skipped", "running")]
    flow.settle()
    flow.clock.advance(minutes=1)
    flow.watchdog()
    assert outcomes(flow)[2:] == [("started", None)]


def test_one_run_waits_for_the_end_of_the_open_one(flow: Flow) -> None:
    put(flow, every="1m", overlap="queue")
    for _ in range(3):
        flow.clock.advance(minutes=1)
        flow.watchdog()
    assert outcomes(flow) == [("started", None), ("queued", None), ("skipped", "waiting")]
    states = Counter(run.state for run in flow.engine.list())
    assert states == {"RUNNING": 1, "QUEUED": 1}
    assert flow.settle() == 2  # the end of the first begins the second
    assert open_runs(flow) == []


def test_the_open_run_is_cancelled_and_replaced(flow: Flow) -> None:
    put(flow, every="1m", overlap="replace")
    for _ in range(3):
        flow.clock.advance(minutes=1)
        flow.watchdog()
    states = [run.state for run in reversed(flow.engine.list())]
    assert states == ["CANCELLED", "CANCELLED", "RUNNING"]
    cancelled = flow.engine.list()[-1]
    assert "the tick of 2023-11-15T00:02:00Z replaces it" in str(
        flow.engine.get(cancelled.id).error
    )
    assert flow.settle() == 1


def test_a_process_that_dies_after_the_commit_of_a_replacement_loses_nothing(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(flow, every="1m", overlap="replace")
    flow.clock.advance(minutes=1)
    flow.watchdog()
    with monkeypatch.context() as dying:
        dying.setattr("flowengine.engine.tick_runs.TickRuns.finish", lambda *_: None)
        flow.clock.advance(minutes=1)
        flow.engine.schedules.take_due()
    assert sorted(run.state for run in flow.engine.list()) == ["QUEUED", "RUNNING"]
    flow.watchdog()  # evaluates the cancellation
    flow.watchdog()
    assert sorted(run.state for run in flow.engine.list()) == ["CANCELLED", "RUNNING"]
    assert flow.settle() == 1


def test_tick_run_and_due_time_are_one_commit(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    put(flow, every="1m")
    flow.clock.advance(minutes=1)

    def dies(*_: object) -> bool:
        raise RuntimeError("killed")

    with monkeypatch.context() as dying:
        dying.setattr(ScheduleRows, "move", dies)
        dying.setattr(DueSchedules, "_postpone", lambda *_: None)
        flow.watchdog()
    assert (flow.engine.list(), outcomes(flow)) == ([], [])
    flow.watchdog()
    assert (len(flow.engine.list()), outcomes(flow)) == (1, [("started", None)])


def test_two_passes_that_have_read_the_same_due_time_take_it_once(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(flow, every="1m")
    flow.clock.advance(minutes=1)
    with flow.database.read() as session:
        stale = session.schedules.due(flow.clock.now, 10)
    assert len(stale) == 1
    flow.watchdog()
    with monkeypatch.context() as late:
        late.setattr(ScheduleRows, "due", lambda *_: stale)
        assert flow.engine.schedules.take_due() == 0
    assert len(flow.engine.list()) == 1


def test_a_schedule_that_cannot_be_read_stops_alone_with_an_alarm(
    flow: Flow, caplog: pytest.LogCaptureFixture
) -> None:
    put(flow, every="1m", name="good")
    for name, stored in (
        ("cron", '{"cron": "61 * * * *"}'),
        ("zone", '{"cron": "@daily", "timezone": "Europe/Nowhere"}'),
        ("text", "no json"),
        ("list", "[]"),
        ("inputs", '{"every": 60, "inputs": {"days": 1}}'),
    ):
        put(flow, every="1m", name=name)
        with flow.database.write() as session:
            session.execute(
                text("UPDATE flowengine_schedule SET definition = :d WHERE name = :n"),
                {"d": stored, "n": name},
            )
    flow.clock.advance(minutes=1)
    with caplog.at_level(logging.ERROR, "flowengine"):
        flow.watchdog()
    states = {each.name: each.state for each in flow.engine.schedules.list()}
    bad = ("cron", "zone", "text", "list", "inputs")
    assert states == {"good": "active", **dict.fromkeys(bad, "stopped")}
    alarms = [r for r in caplog.records if getattr(r, "action", "") == "schedule_stopped"]
    assert len(alarms) == len(bad)
    assert "field 1 (minute)" in next(str(r.message) for r in alarms if "cron" in r.message)
    assert len(flow.engine.list()) == 1
    put(flow, every="5m", name="cron")  # published again, it is active
    assert flow.engine.schedules.get("cron").state == "active"
    with pytest.raises(Exception, match="Europe/Nowhere"):
        flow.engine.schedules.resume("zone")


def test_a_start_that_is_refused_for_a_while_is_tried_again_and_delays_no_other(
    database_url: str,
) -> None:
    with Flow(store_url=database_url, settings=Settings(max_open_runs=1)) as flow:
        flow.clock.now = 1_700_006_400_000
        put(flow, every="1h", catch_up="last")
        flow.clock.advance(hours=1)
        flow.start(daily)
        flow.watchdog()
        assert outcomes(flow) == []
        flow.settle()
        flow.clock.advance(seconds=11)
        flow.watchdog()
        assert outcomes(flow) == [("started", None)]


def test_a_schedule_ends_after_its_last_tick(flow: Flow) -> None:
    put(flow, every="1m", end="2023-11-15T00:02Z")
    for _ in range(4):
        flow.clock.advance(minutes=1)
        flow.watchdog()
    assert outcomes(flow) == [("started", None)] * 2
    assert flow.engine.schedules.get("clock.daily").state == "ended"
    with pytest.raises(ScheduleRefused, match="it is ended"):
        flow.engine.schedules.resume("clock.daily")


def test_a_schedule_that_is_published_again_keeps_its_next_tick_and_its_pause(flow: Flow) -> None:
    put(flow, every="10m")
    before = flow.engine.schedules.get("clock.daily")
    flow.clock.advance(minutes=35)
    put(flow, every="10m", overlap="skip")
    after = flow.engine.schedules.get("clock.daily")
    assert (after.next_tick, after.due, after.definition["overlap"]) == (
        *(before.next_tick, before.due),
        "skip",
    )
    flow.engine.schedules.pause("clock.daily")
    put(flow, every="15m")
    moved = flow.engine.schedules.get("clock.daily")
    assert (moved.state, moved.due) == ("paused", None)
    assert moved.next_tick == before.next_tick + 35 * MINUTE  # type: ignore[operator]


def test_inputs_that_the_workflow_does_not_take_are_refused(flow: Flow) -> None:
    with pytest.raises(InvalidInputs, match="days"):
        put(flow, every="1m", inputs={"days": tick.date})
    with pytest.raises(InvalidInputs):
        put(flow, every="1m", inputs={"day": tick.timestamp})
    assert flow.engine.schedules.list() == []


def test_a_trigger_starts_a_run_now_and_obeys_the_overlap(flow: Flow) -> None:
    put(flow, "@yearly", overlap="skip", inputs={"day": tick.date})
    flow.engine.schedules.pause("clock.daily")
    run_id = flow.engine.schedules.trigger("clock.daily", actor="eva", reason="a test")
    with pytest.raises(ScheduleRefused, match=f"run {run_id} is open"):
        flow.engine.schedules.trigger("clock.daily")
    flow.settle()
    assert flow.engine.get(run_id).outputs == {"result": "noted 2023-11-15"}
    other = flow.engine.schedules.trigger("clock.daily", inputs={"day": "D"})  # same millisecond
    flow.settle()
    assert flow.engine.get(other).outputs == {"result": "noted D"}
    told = flow.engine.schedules.ticks("clock.daily")[-1]
    assert (told.outcome, told.actor, told.reason) == ("triggered", "person:eva", "a test")


def test_a_trigger_at_the_time_of_a_tick_does_not_take_its_place(flow: Flow) -> None:
    put(flow, every="1m")
    flow.clock.advance(minutes=1)
    flow.engine.schedules.trigger("clock.daily")
    flow.watchdog()
    assert len(flow.engine.list()) == 2
    assert sorted(outcomes(flow)) == [("started", None), ("triggered", None)]


def test_all_schedules_are_listed_however_few_a_statement_reads(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "_PAGE", 2)
    for name in "cabd":
        put(flow, every="1m", name=name)
    for names in (["a", "b", "c", "d"], ["a", "b", "c"]):
        assert [each.name for each in flow.engine.schedules.list()] == names
        flow.engine.schedules.remove(names[-1])


def test_an_unknown_schedule_is_reported_with_the_nearest_name(flow: Flow) -> None:
    put(flow, every="1m")
    with pytest.raises(UnknownSchedule, match=r"did you mean 'clock\.daily'"):
        flow.engine.schedules.get("clock.dailly")
    flow.engine.schedules.remove("clock.daily")
    assert flow.engine.schedules.list() == []


def test_a_backfill_starts_past_ticks_and_none_that_has_run(flow: Flow) -> None:
    put(flow, "0 6 * * *", inputs={"day": tick.date}, start="2023-11-01")
    flow.clock.advance(hours=6)
    flow.watchdog()
    given = ("clock.daily", "2023-11-12", "2023-11-15")
    planned = flow.engine.schedules.backfill(*given, dry_run=True)
    assert [(each.run_id is None, each.has_run) for each in planned] == [
        *[(True, False)] * 3,
        (False, True),
    ]
    assert len(flow.engine.list()) == 1
    filled = flow.engine.schedules.backfill(*given, actor="eva")
    again = flow.engine.schedules.backfill(*given)
    assert [each.run_id for each in again] == [each.run_id for each in filled]
    assert all(each.has_run for each in again)
    flow.settle()
    runs = [flow.engine.get(each.run_id or "") for each in filled]
    assert [run.outputs for run in runs] == [
        {"result": f"noted 2023-11-{day}"} for day in (12, 13, 14, 15)
    ]


def test_a_backfill_without_overlap_runs_one_after_the_other(flow: Flow) -> None:
    put(flow, "0 * * * *", overlap="skip")
    flow.engine.schedules.backfill("clock.daily", "2023-11-14T20:00", "2023-11-14T22:00")
    states = Counter(run.state for run in flow.engine.list())
    assert states == {"RUNNING": 1, "QUEUED": 2}
    assert flow.settle() == 3


@pytest.mark.parametrize(
    ("first", "last", "told"),
    [
        ("2023-11-14", "2023-11-13", "is after"),
        ("2030-01-01", "2030-01-02", "in the future"),
        ("soon", "2023-11-13", "is no time"),
        ("2023-11-13", "9999-12-31", "is no time"),
        ("0001-01-01T00:00+14:00", "2023-11-13", "is no time"),
        ("2003-01-01", "2023-11-13", "more than 10,000 ticks"),
    ],
)
def test_a_backfill_of_another_range_is_refused(
    flow: Flow, first: str, last: str, told: str
) -> None:
    put(flow, every="1m")
    with pytest.raises(ScheduleRefused, match=told):
        flow.engine.schedules.backfill("clock.daily", first, last)


def test_a_date_of_a_backfill_is_its_whole_day_in_every_form(flow: Flow) -> None:
    put(flow, "0 */6 * * *")
    for day in ("2023-11-14", "20231114", "2023-W46-2", date(2023, 11, 14)):
        planned = flow.engine.schedules.backfill("clock.daily", day, day, dry_run=True)
        assert len(planned) == 4


def test_a_tick_whose_run_was_backfilled_before_starts_no_second_one(flow: Flow) -> None:
    put(flow, every="1m")
    flow.clock.advance(minutes=1)
    flow.engine.schedules.backfill("clock.daily", "2023-11-15T00:01", "2023-11-15T00:01")
    flow.watchdog()
    assert len(flow.engine.list()) == 1
    assert {each.run_id for each in flow.engine.schedules.ticks("clock.daily")} == {
        flow.engine.list()[0].id
    }


def test_the_program_of_a_schedule_survives_the_purge(flow: Flow) -> None:
    put(flow, "@daily")
    flow.clock.advance(hours=50)
    with flow.database.write() as session:
        assert session.purge.remove_programs(flow.clock.now) == 0
    flow.engine.schedules.trigger("clock.daily")
    assert flow.settle() == 1


def test_outcomes_of_ticks_are_removed_by_their_age(flow: Flow) -> None:
    put(flow, every="1h")
    for _ in range(2):
        flow.clock.advance(hours=1)
        flow.watchdog()
        flow.clock.advance(hours=24 * 60)
    assert flow.engine.purger.remove_expired(60, now=True).rows == 1
    left = flow.engine.schedules.ticks("clock.daily")
    assert all(each.created > flow.clock.now - 90 * 24 * 60 * MINUTE for each in left)
    assert left


def test_schedules_of_other_tenants_are_not_seen(database_url: str) -> None:
    with Flow(store_url=database_url) as flow:
        flow.engine.schedules.put(daily.program(), daily.name, Schedule(every="1m"), tenant="a")
        assert flow.engine.schedules.list() == []
        flow.clock.advance(minutes=1)
        flow.watchdog()
        (run,) = flow.engine.list(tenant="a")
        assert run.tenant == "a"


def test_a_schedule_of_a_workflow_with_a_long_name_says_that_the_name_is_too_long(
    flow: Flow,
) -> None:
    def put(length: int, **options: Any) -> None:
        named = workflow(name=f"a.{'n' * (length - 2)}")(daily.definition.fn)
        flow.engine.schedules.put(named.program(), named.name, Schedule("@daily", **options))

    put(222)
    with pytest.raises(InvalidSchedule) as raised:
        put(223)
    assert "it has 223 characters, and may have 222" in str(raised.value)
    put(223, name="mornings")
    flow.engine.schedules.trigger(f"a.{'n' * 220}", reason="now")
    assert len(flow.engine.list(workflow=f"a.{'n' * 220}")) == 1


def test_ticks_that_are_skipped_one_after_the_other_have_one_row(flow: Flow) -> None:
    put(flow, every="1s", overlap="skip")
    for _ in range(50):
        flow.clock.advance(seconds=1)
        flow.watchdog()
    started, skipped = reversed(flow.engine.schedules.ticks("clock.daily"))
    assert started.outcome == "started"
    assert (skipped.outcome, skipped.reason, skipped.tick_count) == ("skipped", "running", 49)
    assert (skipped.nominal, skipped.last) == (started.nominal + 1_000, started.nominal + 49_000)
    assert skipped.created == flow.clock.now, "its age is that of the last tick"
    flow.settle()
    for _ in range(3):
        flow.clock.advance(seconds=1)
        flow.watchdog()
    counts = [
        (tick.outcome, tick.tick_count) for tick in flow.engine.schedules.ticks("clock.daily")
    ]
    assert counts == [("skipped", 2), ("started", None), ("skipped", 49), ("started", None)]


def test_a_row_of_skipped_ticks_ends_where_the_reason_or_the_timetable_changes(flow: Flow) -> None:
    put(flow, every="1m", overlap="skip")

    def pass_minutes(number: int) -> None:
        for _ in range(number):
            flow.clock.advance(minutes=1)
            flow.watchdog()

    pass_minutes(3)
    flow.engine.schedules.pause("clock.daily", actor="eva")
    pass_minutes(5)
    flow.engine.schedules.resume("clock.daily", actor="eva")
    pass_minutes(4)
    put(flow, every="11m", overlap="skip")
    pass_minutes(22)
    rows = flow.engine.schedules.ticks("clock.daily", most=100)
    told = [(tick.reason, tick.tick_count) for tick in reversed(rows) if tick.outcome == "skipped"]
    assert told == [("running", 2), ("late", 4), ("running", 5), ("running", 2)]

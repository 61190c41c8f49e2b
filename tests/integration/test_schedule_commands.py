"""`flowengine schedules`, schedules of the code of a process, and those of Celery's beat."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule
from click.testing import CliRunner, Result

from flowengine import Schedule, event_facet, tick, workflow
from flowengine.assembly.adopted_schedules import adopt
from flowengine.cli import main
from flowengine.errors import NotJson
from flowengine.settings import Settings
from flowengine.store.database import system_clock
from flowengine.testing import Flow
from flowengine.worker.published_schedules import SchedulePublisher

Command = Callable[..., Result]


@event_facet(name="rows.note")
def note(day: str) -> str:
    return day


@workflow(name="rows.daily")
def daily(day: str) -> str:
    return note(day)


@workflow(name="rows.hourly")
def hourly(day: str = "today") -> str:
    return note(day)


@pytest.fixture
def flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flow]:
    url = f"sqlite:///{tmp_path}/flow.db"
    monkeypatch.setenv("FLOWENGINE_DATABASE_URL", url)
    monkeypatch.chdir(tmp_path)
    # Not in the decorator: every process of the tests imports this, and would publish it.
    morning = Schedule(
        "0 6 * * *", timezone="Europe/Berlin", inputs={"day": tick.date}, jitter="5m"
    )
    monkeypatch.setattr(daily, "schedules", (morning,))
    with Flow(store_url=url) as flow:
        SchedulePublisher().publish(flow.engine)
        yield flow


@pytest.fixture
def command(flow: Flow) -> Command:
    def run(*words: str, expect: int = 0) -> Result:
        result = CliRunner().invoke(main, ["schedules", *words])
        assert result.exit_code == expect, result.output
        return result

    return run


def test_a_process_publishes_the_schedules_of_its_code_once(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = flow.engine.schedules.list()
    assert (found.name, found.workflow, found.source) == ("rows.daily", "rows.daily", "python")
    publisher = SchedulePublisher()
    publisher.publish(flow.engine)
    monkeypatch.setattr(flow.engine.schedules, "put", None)
    publisher.publish(flow.engine)


def test_a_schedule_that_the_workflow_refuses_is_reported_and_others_are_published(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = Schedule("@daily", inputs={"days": 1})
    monkeypatch.setattr(hourly, "schedules", (wrong, Schedule("@hourly", name="other")))
    with caplog.at_level(logging.ERROR, "flowengine"):
        SchedulePublisher().publish(flow.engine)
    (told,) = [r for r in caplog.records if getattr(r, "action", "") == "schedule_refused"]
    assert "unknown input 'days'; did you mean 'day'?" in told.getMessage()
    assert [each.name for each in flow.engine.schedules.list()] == ["other", "rows.daily"]


def test_inputs_that_are_not_json_are_refused(flow: Flow) -> None:
    with pytest.raises(NotJson, match=r"the inputs of schedule rows\.hourly"):
        flow.engine.schedules.put(
            hourly.program(), hourly.name, Schedule("@daily", inputs={"day": object()})
        )


def test_the_list_has_times_state_and_next_tick(command: Command) -> None:
    shown = command().output
    assert command("list").output == shown
    assert "rows.daily" in shown
    assert "0 6 * * * Europe/Berlin" in shown
    assert "06:00:00 CE" in shown
    (row,) = json.loads(command("list", "--json").output)
    assert row["definition"]["inputs"] == {"day": {"$tick": "date"}}


def test_a_schedule_is_paused_triggered_and_resumed(flow: Flow, command: Command) -> None:
    paused = command("pause", "rows.daily", "--reason", "a move", "--actor", "eva")
    assert paused.output == "schedule rows.daily is paused\n"
    assert "by eva: a move" in command().output
    started = command("trigger", "rows.daily", "-i", "day=D", "--actor", "eva")
    run_id = started.output.split()[1]
    flow.clock.now = system_clock()
    flow.settle()
    assert flow.engine.get(run_id).outputs == {"result": "D"}
    shown = command("show", "rows.daily").output
    assert "triggered" in shown
    assert "jitter     up to 5 min 0 s\n" in shown
    assert run_id[:8] in shown
    assert command("resume", "rows.daily").output == "schedule rows.daily is active\n"
    assert command("remove", "rows.daily").output == "schedule rows.daily is removed\n"
    assert command().output.startswith("no schedules")


def test_a_triggered_run_that_waits_for_another_is_reported_as_queued(
    flow: Flow, command: Command
) -> None:
    queue = Schedule("@yearly", overlap="queue", inputs={"day": "D"}, name="one by one")
    flow.engine.schedules.put(daily.program(), daily.name, queue)
    assert command("trigger", "one by one").output.endswith(" is started\n")
    assert command("trigger", "one by one").output.endswith(" is queued behind another\n")


def test_a_backfill_is_shown_before_it_is_made(flow: Flow, command: Command) -> None:
    span = "2023-11-12..2023-11-14"
    planned = command("backfill", "rows.daily", span, "--dry-run").output
    assert planned.splitlines() == [
        "2023-11-12 06:00:00 CET  would start",
        "2023-11-13 06:00:00 CET  would start",
        "2023-11-14 06:00:00 CET  would start",
        "would start 3 of 3 ticks",
    ]
    assert flow.engine.list() == []
    assert command("backfill", "rows.daily", span).output.endswith("started 3 of 3 ticks\n")
    again = command("backfill", "rows.daily", span).output
    assert again.endswith("started 0 of 3 ticks\n")
    assert again.count("has run") == 3
    flow.clock.now = system_clock()
    assert flow.settle() == 3


@pytest.mark.parametrize("span", ["2023-11-12", "..2023-11-12", "2023-11-12.."])
def test_a_span_without_both_ends_is_refused(command: Command, span: str) -> None:
    refused = command("backfill", "rows.daily", span, expect=2)
    assert "write FROM..TO, as 2026-11-01..2026-11-14" in refused.output


# --- Celery's beat ---


def entry(when: Any, task: str = "flowengine.execute", **more: Any) -> dict[str, Any]:
    return {"task": task, "schedule": when, **more}


class Sunset(BaseSchedule):  # type: ignore[misc]
    """Times that no expression has."""


@pytest.fixture
def app() -> Celery:
    app = Celery("shop", set_as_current=False, timezone="Europe/Berlin")
    app.conf.beat_schedule = {
        "nightly": entry(crontab(hour=3, minute=0), args=("rows.hourly", {"day": "D"})),
        "weekdays": entry(
            crontab(minute="*/15", hour="8-17", day_of_week="mon-fri"),
            kwargs={"workflow": "rows.hourly", "inputs": {}},
        ),
        "often": entry(30.0, "rows.hourly", kwargs={"day": "D"}),
        "seldom": entry(timedelta(hours=6), args=("rows.hourly", {})),
        "made": entry(schedule(run_every=90), args=("rows.hourly", {})),
        "sunset": entry(Sunset(), args=("rows.hourly", {})),
        "friday 13th": entry(
            crontab(0, 0, day_of_month="13", day_of_week="fri"), args=("rows.hourly", {})
        ),
        "gone": entry(60, args=("rows.gone", {})),
        "unnamed": entry(60, "rows.hourly", args=("D",)),
        "cleanup": entry(60, "celery.backend_cleanup"),
    }
    return app


def test_entries_of_beat_that_start_workflows_become_schedules(flow: Flow, app: Celery) -> None:
    assert len(adopt(app, flow.engine, dry_run=True)) == 9
    assert len(flow.engine.schedules.list()) == 1
    adopted = {each.entry: each.problem or each.schedule for each in adopt(app, flow.engine)}
    assert adopted == {
        "nightly": "0 3 * * * Europe/Berlin",
        "weekdays": "*/15 8-17 * * mon-fri Europe/Berlin",
        "often": "every 30s",
        "seldom": "every 6h",
        "made": "every 90s",
        "sunset": "a schedule of type Sunset has no fixed times",
        "friday 13th": "it names days of the month and of the week, which cron reads differently",
        "gone": "the app has no workflow 'rows.gone'; import its module",
        "unnamed": "its inputs have no names; give them as kwargs",
    }
    nightly = flow.engine.schedules.get("nightly")
    assert (nightly.source, nightly.definition["inputs"]) == ("beat", {"day": "D"})
    before = flow.engine.schedules.list()
    adopt(app, flow.engine)
    assert flow.engine.schedules.list() == before


def test_a_dry_run_of_adopting_refuses_the_entries_that_adopting_refuses(
    flow: Flow, app: Celery
) -> None:
    app.conf.beat_schedule["unknown"] = entry(60, "rows.hourly", kwargs={"dya": "D"})
    app.conf.beat_schedule["long" * 100] = entry(60, "rows.hourly", kwargs={"day": "D"})
    shown = adopt(app, flow.engine, dry_run=True)
    (unknown,) = [each for each in shown if each.entry == "unknown"]
    assert "dya" in unknown.problem
    assert unknown.schedule == ""
    assert len(flow.engine.schedules.list()) == 1, "nothing is stored"
    assert adopt(app, flow.engine) == shown


def test_an_entry_whose_options_a_schedule_cannot_carry_is_refused(flow: Flow, app: Celery) -> None:
    start = {"workflow": "rows.hourly", "inputs": {}}
    app.conf.beat_schedule = {
        "once": entry(60, kwargs={**start, "key": "first"}),
        "again": entry(60, kwargs={**start, "if_failed": "start"}),
        "third": entry(60, args=("rows.hourly", {}, "first")),
        "later": entry(60, kwargs=start, options={"countdown": 30, "queue": "x"}),
        "linked": entry(60, "rows.hourly", kwargs={"day": "D"}, options={"link": "x"}),
        "routed": entry(60, kwargs=start, options={"queue": "x", "expires": 30}),
    }
    found = {each.entry: each.problem for each in adopt(app, flow.engine)}
    assert found == {
        "once": "a schedule has no 'key': each of its ticks has a key of its own",
        "again": "a schedule has no 'if_failed': each of its ticks has a key of its own",
        "third": "a schedule has no 'key': each of its ticks has a key of its own",
        "later": "a schedule has no option 'countdown': the entry cannot be carried over",
        "linked": "a schedule has no option 'link': the entry cannot be carried over",
        "routed": "",
    }


def test_the_entry_of_the_watchdog_is_not_adopted(flow: Flow) -> None:
    from flowengine.assembly import FlowEngine

    app = Celery("shop", set_as_current=False, broker="memory://")
    FlowEngine(app, settings=Settings())
    app.finalize()
    assert "flowengine.watchdog" in app.conf.beat_schedule
    assert adopt(app, flow.engine) == []


def test_adopting_needs_an_app(command: Command) -> None:
    assert "flowengine -A APP" in command("adopt", expect=2).output

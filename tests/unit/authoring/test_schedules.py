"""The option `schedule` of a workflow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flowengine import AuthoringError, InvalidSchedule, Schedule, tick, workflow
from tests.registries import empty_registry


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Workflows with schedules, which engines of other tests would publish."""
    with empty_registry():
        yield


def test_a_workflow_has_the_schedules_of_its_decorator() -> None:
    morning = Schedule("0 6 * * mon-fri", timezone="Europe/Berlin", inputs={"day": tick.date})

    @workflow(name="shop.scheduled", schedule=morning)
    def scheduled(day: str) -> str:
        return day

    assert scheduled.schedules == (morning,)
    assert scheduled("D") == "D"


def test_the_program_of_a_workflow_does_not_depend_on_its_schedule() -> None:
    def report(day: str) -> str:
        return day

    plain = workflow(name="shop.report_by_clock")(report).program()
    timed = workflow(name="shop.report_by_clock", schedule=Schedule("@daily"))(report).program()
    assert plain == timed


@pytest.mark.parametrize("given", ["0 6 * * *", 3600, [Schedule("@daily"), "@hourly"]])
def test_another_value_is_refused_with_the_line_and_a_cure(given: object) -> None:
    with pytest.raises(AuthoringError, match=r"test_schedules\.py:\d+.*is not a Schedule; write"):

        @workflow(name="shop.refused", schedule=given)  # type: ignore[call-overload, untyped-decorator]
        def refused() -> None: ...


def test_several_schedules_have_names() -> None:
    with pytest.raises(AuthoringError, match="several schedules of the same name"):

        @workflow(name="shop.twice", schedule=[Schedule("@daily"), Schedule("@hourly")])
        def twice() -> None: ...

    @workflow(name="shop.two", schedule=[Schedule("@daily", name="a"), Schedule("@hourly")])
    def two() -> None: ...

    assert [each.name for each in two.schedules] == ["a", ""]


def test_an_unknown_value_of_a_tick_is_refused_when_it_is_written() -> None:
    with pytest.raises(AttributeError, match="it has date, time, utc, timestamp, schedule"):
        Schedule("@daily", inputs={"day": tick.day})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "either a cron expression or `every`"),
        ({"cron": "@daily", "every": "1h"}, "either a cron expression or `every`"),
        ({"every": "15 minutes"}, "a number with a unit"),
        ({"every": 0.5}, "between 1 s and 366 days"),
        ({"every": "500d"}, "between 1 s and 366 days"),
        ({"cron": "@daily", "overlap": "wait"}, "write allow, skip, queue, replace"),
        ({"cron": "@daily", "catch_up": "some"}, "write none, last, all"),
        ({"cron": "@daily", "jitter": "soon"}, "a number with a unit"),
        ({"cron": "@daily", "start": "tomorrow"}, "write a time as 2026-11-15T06:00"),
        ({"cron": "@daily", "start": "2026-11-15", "end": "2026-11-14"}, "it is before the start"),
        ({"cron": "@daily", "name": "a@b"}, "without @"),
        ({"cron": 5}, "write it as text"),
        ({"cron": "@daily", "inputs": ["day"]}, "write a map"),
        ({"cron": "@daily", "inputs": {"$tick": 1}}, "this name is reserved"),
    ],
)
def test_a_bad_option_is_reported_with_a_cure(options: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        Schedule(**options)  # type: ignore[arg-type]
    assert told in str(caught.value)

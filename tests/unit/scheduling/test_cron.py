"""Cron expressions: on days when clocks change, with seconds, and if they cannot be read."""

from __future__ import annotations

from bisect import bisect_right
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from flowengine.errors import InvalidSchedule
from flowengine.scheduling import Schedule
from flowengine.scheduling.cron import Cron
from tests.unit.scheduling.plain_model import MINUTE, ticks

#: The first minute, in UTC, of two days around each change of the clocks, which comes at
#: the twelfth hour or the thirteenth.
CHANGES = [
    ("Europe/Berlin", datetime(2026, 3, 28, 12)),
    ("Europe/Berlin", datetime(2026, 10, 24, 12)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 3)),
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 3)),
    ("UTC", datetime(2026, 3, 28, 12)),
]
EXPRESSIONS = [
    "30 2 * * *",
    "15 2 * * *",
    "0 2 * * *",
    "0,30 2 * * *",
    "45 1 * * *",
    "30 1 * * *",
    "0 3 * * *",
    "0 0 * * *",
    "10,50 1-3 * * *",
    "*/30 3 * * *",
    "*/15 2 * * *",
    "0 * * * *",
    "30 * * * *",
    "0 */2 * * *",
    "*/20 * * * *",
    "* 1 * * *",
    "5 0-23 * * *",
]


@pytest.mark.parametrize("cron", EXPRESSIONS)
@pytest.mark.parametrize(("zone", "first"), CHANGES)
def test_the_next_tick_is_that_of_the_plain_model_at_every_minute_around_a_change(
    zone: str, first: datetime, cron: str
) -> None:
    expected = ticks(cron, zone, first, first + timedelta(days=3))
    expression = Cron(cron, ZoneInfo(zone))
    moment = first + timedelta(hours=9)
    while moment < first + timedelta(hours=17):
        found = expression.after(moment)
        assert found == expected[bisect_right(expected, moment)], f"{cron} {zone} after {moment}"
        moment += MINUTE


@pytest.mark.parametrize(("zone", "first"), CHANGES)
def test_a_fixed_local_time_fires_once_on_every_day(zone: str, first: datetime) -> None:
    expression = Cron("30 2 * * *", ZoneInfo(zone))
    found, moment = [], first
    while (tick := expression.after(moment)) and tick < first + timedelta(days=2):
        found.append(tick)
        moment = tick
    assert len(found) == 2


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        ("30 30 2 * * *", "2026-03-29 00:59:59", "2026-03-29 01:00:30"),  # the end of the gap
        ("10,30 30 2 * * *", "2026-03-29 01:00:10", "2026-03-29 01:00:30"),
        ("30 30 2 * * *", "2026-03-29 01:00:30", "2026-03-30 00:30:30"),
        ("15 30 2 * * *", "2026-10-25 00:30:15", "2026-10-26 01:30:15"),  # not the second time
        ("15 30 2 * * *", "2026-10-25 01:10:00", "2026-10-26 01:30:15"),
        ("*/20 59 * * * *", "2026-10-25 00:59:40", "2026-10-25 01:59:00"),
    ],
)
def test_seconds_are_added_to_the_time_of_five_fields(cron: str, after: str, expected: str) -> None:
    expression = Cron(cron, ZoneInfo("Europe/Berlin"))
    assert expression.after(datetime.fromisoformat(after)) == datetime.fromisoformat(expected)


def test_zero_and_seven_are_sunday_and_names_of_days_are_known() -> None:
    utc, friday = ZoneInfo("UTC"), datetime(2026, 11, 20)
    sunday = datetime(2026, 11, 22, 6)
    assert {Cron(f"0 6 * * {day}", utc).after(friday) for day in ("0", "7", "sun")} == {sunday}
    assert Cron("0 6 * * mon-fri", utc).after(sunday) == datetime(2026, 11, 23, 6)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * 0"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@Hourly", "0 * * * *"),
    ],
)
def test_names_stand_for_five_fields(name: str, fields: str) -> None:
    berlin, moment = ZoneInfo("Europe/Berlin"), datetime(2026, 11, 15, 8, 30)
    assert Cron(name, berlin).after(moment) == Cron(fields, berlin).after(moment)


@pytest.mark.parametrize(
    ("cron", "told"),
    [
        ("61 * * * *", "field 1 (minute)"),
        ("0 0 24 * * *", "field 3 (hour)"),
        ("0 24 * * *", "field 2 (hour)"),
        ("0 0 * * fun", "field 5 (day of the week)"),
        ("0 0 * * mon#1/2", "field 5 (day of the week)"),
        ("0 0 0 * *", "field 3 (day of the month)"),
        ("30-10 * * * *", "field 1 (minute)"),
        ("*/0 * * * *", "field 1 (minute)"),
        ("0 0 31 2 *", "no month that it names has such a day"),
        ("0 6 * *", "it has 4 fields; write five"),
        ("", "it has 0 fields"),
        ("@reboot", "the names are @yearly"),
        ("1" * 5000, "more than 200 characters"),
    ],
)
def test_a_bad_expression_is_reported_with_its_field_and_a_cure(cron: str, told: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        Schedule(cron)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("zone", "told"),
    [
        ("Europe/Berlim", "did you mean 'Europe/Berlin'?"),
        ("berlin", "did you mean 'Europe/Berlin'?"),
        ("Europe", "no IANA time zone has that name"),
        ("../etc/passwd", "no IANA time zone has that name"),
        ("", "no IANA time zone has that name"),
    ],
)
def test_an_unknown_zone_is_reported_with_the_nearest_name(zone: str, told: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        Schedule("0 6 * * *", timezone=zone)
    assert str(caught.value).startswith("the timezone of the schedule is")
    assert told in str(caught.value)

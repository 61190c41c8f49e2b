"""The ticks of a backfill."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from flowengine.errors import ScheduleRefused
from flowengine.scheduling import Timetable
from flowengine.scheduling.zones import moment_of

MAX_TICKS = 10_000  #: of one backfill
_EPOCH = datetime(1970, 1, 1)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class BackfillTick:
    """A tick of a backfill, and its run."""

    nominal: int
    run_id: str | None  #: None in a dry run, for a tick without a run
    has_run: bool  #: before the backfill


def tick_range(
    timetable: Timetable, first: str | date | datetime, last: str | date | datetime, now: int
) -> list[int]:
    """Return the ticks from `first` to `last`, up to now; raises ScheduleRefused."""
    begin = _moment(timetable, first, end=False)
    end = min(_moment(timetable, last, end=True), now)
    if begin > end:
        problem = f"{first} is after {last}, or in the future; give a range of the past"
        raise ScheduleRefused(timetable.name, "be backfilled", problem)
    ticks: list[int] = []
    tick = timetable.after(begin - 1)
    while tick is not None and tick <= end:
        if len(ticks) == MAX_TICKS:
            problem = f"there are more than {MAX_TICKS:,} ticks; give a smaller range"
            raise ScheduleRefused(timetable.name, "be backfilled", problem)
        ticks.append(tick)
        tick = timetable.after(tick)
    return ticks


def _moment(timetable: Timetable, given: str | date | datetime, *, end: bool) -> int:
    """Return a bound in milliseconds; a local time is one of the schedule's zone."""
    try:
        is_date, moment = _read(given)
        if is_date and end:
            moment += timedelta(days=1)
        if moment.tzinfo is None:
            utc = moment_of(timetable.schedule.zone, moment)
        else:
            utc = moment.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        problem = f"{str(given)[:100]!r} is no time of a tick; write 2026-11-15 or 2026-11-15T06:00"
        raise ScheduleRefused(timetable.name, "be backfilled", problem) from None
    return (utc - _EPOCH) // _MILLISECOND - (is_date and end)


def _read(given: str | date | datetime) -> tuple[bool, datetime]:
    """Return whether a bound is a date, and its time: the beginning of that day."""
    if isinstance(given, str):
        try:
            return True, datetime.combine(date.fromisoformat(given), time())  # of any ISO form
        except ValueError:
            return False, datetime.fromisoformat(given)
    if isinstance(given, datetime):
        return False, given
    return True, datetime.combine(given, time())

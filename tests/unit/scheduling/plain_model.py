"""A plain model of cron: it looks at every minute, and knows nothing of cronsim or of offsets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)


def values(field: str, least: int, most: int) -> set[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        low, _, high = span.partition("-")
        first, last = (least, most) if span == "*" else (int(low), int(high or low))
        found.update(range(first, last + 1, int(step or 1)))
    return found


@lru_cache(maxsize=8)
def wall_clock(zone: str, first: datetime, last: datetime) -> list[tuple[datetime, datetime]]:
    """Return all minutes in UTC, each with the time that a clock on the wall shows then."""
    clock, moment = [], first
    while moment <= last:
        shown = moment.replace(tzinfo=UTC).astimezone(ZoneInfo(zone))
        clock.append((moment, shown.replace(tzinfo=None)))
        moment += MINUTE
    return clock


def ticks(cron: str, zone: str, first: datetime, last: datetime) -> list[datetime]:
    """Return the ticks of an expression `m h * * *` from the first minute to the last, in UTC."""
    minute, hour, *days = cron.split()
    assert days == ["*", "*", "*"], "the model knows no days"
    minutes, hours = values(minute, 0, 59), values(hour, 0, 23)
    # From a day before: the local time of a tick in a gap is before the first minute.
    clock = wall_clock(zone, first - timedelta(days=1), last + timedelta(days=1))
    found: set[datetime] = set()
    if minute.startswith("*") or hour.startswith("*"):
        found.update(m for m, shown in clock if shown.minute in minutes and shown.hour in hours)
    else:
        seen: set[datetime] = set()
        latest = clock[0][1] - MINUTE
        for moment, shown in clock:
            # Every wall time that the clock has reached or passed for the first time fires now.
            while latest < shown:
                latest += MINUTE
                if latest not in seen and latest.minute in minutes and latest.hour in hours:
                    seen.add(latest)
                    found.add(moment)
    return sorted(moment for moment in found if first <= moment <= last)

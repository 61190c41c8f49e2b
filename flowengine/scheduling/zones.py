"""Time zones: the offset of a moment, and the moment of a local time.

Moments are naive datetimes in UTC. A local time may not exist (in a gap, when clocks go forward) or
exist twice (in a repeated hour, when they go back).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from zoneinfo import ZoneInfo, available_timezones

from flowengine.errors import InvalidSchedule

_SECOND = timedelta(seconds=1)
#: No zone changes its offset twice within a day.
_STRIDE = timedelta(days=1)


def zone_named(name: str) -> ZoneInfo:
    """Return the zone of an IANA name; raise InvalidSchedule."""
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):  # a directory, a path, an unknown name
        known = sorted(available_timezones())
        near = get_close_matches(name[:100], known, 1, 0.7)
        ends = [zone for zone in known if zone.rpartition("/")[2].lower() == name.lower()]
        hint = f"did you mean {(ends or near)[0]!r}?" if ends or near else "write Europe/Berlin"
        raise InvalidSchedule(
            "the timezone", name[:200], f"no IANA time zone has that name; {hint}"
        ) from None


def offset_at(zone: ZoneInfo, moment: datetime) -> timedelta:
    offset = moment.replace(tzinfo=UTC).astimezone(zone).utcoffset()
    assert offset is not None
    return offset


def first_change(zone: ZoneInfo, after: datetime, until: datetime) -> datetime | None:
    """Return the first moment in (after, until] whose offset is not that of `after`."""
    offset = offset_at(zone, after)
    low = after
    while low < until:
        high = min(low + _STRIDE, until)
        if offset_at(zone, high) != offset:
            while high - low > _SECOND:
                middle = low + (high - low) // _SECOND // 2 * _SECOND
                if offset_at(zone, middle) == offset:
                    low = middle
                else:
                    high = middle
            return high
        low = high
    return None


def moment_of(zone: ZoneInfo, local: datetime) -> datetime:
    """Return the moment of a local time: the first of two; for one in a gap, the gap's end."""
    before = local.replace(tzinfo=zone, fold=0).utcoffset()
    after = local.replace(tzinfo=zone, fold=1).utcoffset()
    assert before is not None
    assert after is not None
    if after > before:  # in a gap: PEP 495 gives the offsets on both sides
        return first_change(zone, local - after, local - before) or local - before
    return local - before

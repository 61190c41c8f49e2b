"""Cron expressions: five fields, six with seconds first, and `@daily` and its kin.

A fixed local time fires once a day: at the end of a gap that contains it, and the first time in a
repeated hour. An expression whose minutes or hours begin with a star follows UTC: it fires at every
moment whose local time matches. This is the rule of Debian's cron.

cronsim is asked for naive local times alone, and the rule is applied here, because its own has
three faults: it does not apply to six fields; a search that begins in a repeated hour returns a
moment in the past; and with a shift of half an hour (Australia/Lord_Howe) an hour's first match is
missed.
"""

from __future__ import annotations

from copy import copy
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from cronsim.cronsim import Field

from flowengine.errors import InvalidSchedule
from flowengine.scheduling.zones import first_change, moment_of, offset_at

_SECOND = timedelta(seconds=1)
_MAX_LENGTH = 200
_REFERENCE = datetime(2000, 1, 1)
_NAMED = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FIELDS = ("second", "minute", "hour", "day of the month", "month", "day of the week")
_ALLOWED = (
    "0-59",
    "0-59",
    "0-23",
    "1-31, L (the last day) or LW (the last weekday)",
    "1-12 or jan-dec",
    "0-7 (0 and 7 are Sunday), sun-sat, 5L (the last Friday) or 1#2 (the second Monday)",
)
_PLACE = "the cron expression"


class Cron:
    """A cron expression in a time zone."""

    def __init__(self, text: str, zone: ZoneInfo) -> None:
        """Read an expression; raise InvalidSchedule with the field that is wrong."""
        fields = _fields_of(text)
        self._zone = zone
        self._whole = _checked(text, fields)
        self._by_minute = CronSim(" ".join(fields[1:]), _REFERENCE)
        self._seconds = sorted(self._whole.seconds)
        self._follows_utc = fields[1].startswith("*") or fields[2].startswith("*")
        if self.after(_REFERENCE) is None:
            raise InvalidSchedule(
                _PLACE, text, "no day of the calendar matches it; correct the days"
            )

    def after(self, moment: datetime) -> datetime | None:
        """Return the first tick after a moment; both are naive, in UTC."""
        moment = moment.replace(microsecond=0)
        try:
            return self._matching(moment) if self._follows_utc else self._once_a_day(moment)
        except (StopIteration, OverflowError):  # none within 50 years, or before the year 10,000
            return None

    def _matching(self, moment: datetime) -> datetime:
        """Return the first moment whose local time matches, by stretches of equal offset."""
        offset = offset_at(self._zone, moment)
        local = moment + offset
        while True:
            found = next(_from(self._whole, local)) - offset
            change = first_change(self._zone, moment, found)
            if change is None:
                return found
            moment, offset = change, offset_at(self._zone, change)
            local = change + offset - _SECOND  # the change itself may match

    def _once_a_day(self, moment: datetime) -> datetime | None:
        # A minute back, as a moment and not as a local time: of a minute in a gap some seconds
        # may be due after its end.
        earlier = moment - timedelta(seconds=61)
        for local in _from(self._by_minute, earlier + offset_at(self._zone, earlier)):
            minute = moment_of(self._zone, local)
            for second in self._seconds:
                if (found := minute + timedelta(seconds=second)) > moment:
                    return found
        return None


def _from(parsed: CronSim, local: datetime) -> CronSim:
    """Return the matches after a local time; reading the text again would cost most of a search."""
    matches = copy(parsed)
    matches.dt = local
    return matches


def _fields_of(text: str) -> list[str]:
    if len(text) > _MAX_LENGTH:
        raise InvalidSchedule(_PLACE, text[:50] + "…", f"it has more than {_MAX_LENGTH} characters")
    stripped = text.strip()
    if stripped.startswith("@"):
        if stripped.lower() not in _NAMED:
            raise InvalidSchedule(_PLACE, text, f"the names are {', '.join(_NAMED)}")
        stripped = _NAMED[stripped.lower()]
    fields = stripped.split()
    if len(fields) == 5:
        fields.insert(0, "0")
    if len(fields) != 6:
        raise InvalidSchedule(
            _PLACE,
            text,
            f"it has {len(fields)} fields; write five (minute, hour, day of the month, month, day "
            "of the week), or six with the second before them",
        )
    return fields


def _checked(text: str, fields: list[str]) -> CronSim:
    given = len(text.split())
    for index, field in enumerate(fields):
        try:
            Field(index).parse(field.upper())
        except (CronSimError, AssertionError, TypeError, ValueError):
            place = f"field {index + 1 - (given == 5)} ({_FIELDS[index]}) of {_PLACE}"
            cure = f"write {_ALLOWED[index]}, *, lists 1,2, ranges 1-5 or steps */15; first < last"
            raise InvalidSchedule(place, text, f"{field!r} is not allowed; {cure}") from None
    try:
        return CronSim(" ".join(fields), _REFERENCE)
    except CronSimError:
        problem = "no month that it names has such a day; correct the day or the month"
        raise InvalidSchedule(_PLACE, text, problem) from None

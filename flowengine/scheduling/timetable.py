"""The timetable of a schedule: its ticks in order, as milliseconds since 1970 in UTC."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

from flowengine.scheduling.cron import Cron
from flowengine.scheduling.schedule import Schedule

_EPOCH = datetime(1970, 1, 1)
_MILLISECOND = timedelta(milliseconds=1)
_LAST = round(datetime(9999, 1, 1, tzinfo=UTC).timestamp() * 1000)


class Timetable:
    """The ticks of one schedule. A tick is later than the one before it."""

    def __init__(self, name: str, schedule: Schedule) -> None:
        self.name, self.schedule = name, schedule
        self._cron = None if schedule.cron is None else Cron(schedule.cron, schedule.zone)
        self._period = schedule.period
        self._start, self._end = schedule.starts_at, schedule.ends_at
        self._max_delay = schedule.max_delay

    def after(self, moment: int) -> int | None:
        """Return the first tick after a moment, or None if there is no more."""
        if self._start is not None:
            moment = max(moment, self._start - 1)
        if moment >= _LAST:
            return None
        found = self._cron_after(self._cron, moment) if self._cron else self._interval_after(moment)
        if found is None or found > _LAST or (self._end is not None and found > self._end):
            return None
        return found

    def before(self, moment: int, first: int) -> int | None:
        """Return the last tick before a moment, and not before `first`.

        `after` alone is asked: with it, the search agrees with the order of ticks by itself.
        """
        span = 1000
        while True:
            low = max(moment - span, first) - 1
            found = self.after(low)
            if found is not None and found < moment:
                break
            if low < first:
                return None
            span *= 2
        high = moment - 1  # no tick is after it and before `moment`
        while (later := self.after(found)) is not None and later < moment:
            found = later
            middle = (found + high) // 2
            further = self.after(middle)
            if further is not None and further < moment:
                found = further
            else:
                high = middle
        return found

    def due_time(self, nominal: int) -> int:
        """Return when the run of a tick is to be started: its time and the jitter.

        The jitter is a digest of the schedule and the tick, so each process computes the same.
        """
        if not self._max_delay:
            return nominal
        digest = hashlib.sha256(f"{self.name}@{nominal}".encode()).digest()
        return nominal + int.from_bytes(digest[:8]) % (self._max_delay + 1)

    @property
    def max_delay(self) -> int:
        return self._max_delay

    def _cron_after(self, cron: Cron, moment: int) -> int | None:
        found = cron.after(_EPOCH + moment * _MILLISECOND)
        return None if found is None else (found - _EPOCH) // _MILLISECOND

    def _interval_after(self, moment: int) -> int:
        anchor = self._start or 0
        return anchor + ((moment - anchor) // self._period + 1) * self._period

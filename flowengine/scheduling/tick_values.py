"""The values of a tick that inputs of a schedule may name: ``inputs={"day": tick.date}``.

They are stored as ``{"$tick": "date"}``, and replaced when the run of the tick is started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from flowengine.errors import InvalidSchedule

_KEY = "$tick"
NAMES = ("date", "time", "utc", "timestamp", "schedule")


@dataclass(frozen=True, slots=True)
class TickValue:
    """A value that is known when the tick comes."""

    name: str

    def __repr__(self) -> str:
        return f"tick.{self.name}"


class Tick:
    """The tick of a schedule, while it is defined: its attributes stand for later values."""

    date: Any = TickValue("date")  #: the local date: "2026-11-15"
    time: Any = TickValue("time")  #: the local time with its offset: "2026-11-15T06:00:00+01:00"
    utc: Any = TickValue("utc")  #: the same moment in UTC: "2026-11-15T05:00:00Z"
    timestamp: Any = TickValue("timestamp")  #: seconds since 1970
    schedule: Any = TickValue("schedule")  #: the name of the schedule

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a tick has no {name!r}; it has {', '.join(NAMES)}")


tick = Tick()


def to_stored(value: Any) -> Any:
    """Replace values of a tick by their stored form, at any depth."""
    if isinstance(value, TickValue):
        return {_KEY: value.name}
    if isinstance(value, Mapping):
        if _KEY in value:
            problem = "this name is reserved; write tick.date or another value of the tick"
            raise InvalidSchedule("inputs", _KEY, problem)
        return {name: to_stored(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_stored(each) for each in value]
    return value


def from_stored(value: Any) -> Any:
    """The inverse of `to_stored`; raise InvalidSchedule for an unknown value of a tick."""
    if isinstance(value, Mapping):
        if _KEY in value:
            if len(value) != 1 or value[_KEY] not in NAMES:
                problem = f"a tick has {', '.join(NAMES)}"
                raise InvalidSchedule("inputs", repr(dict(value))[:100], problem)
            return TickValue(value[_KEY])
        return {name: from_stored(each) for name, each in value.items()}
    return [from_stored(each) for each in value] if isinstance(value, list) else value


def filled(value: Any, schedule: str, nominal: int, zone: ZoneInfo) -> Any:
    """Return inputs with the values of the tick at its nominal time, in milliseconds."""
    if isinstance(value, TickValue):
        utc = datetime.fromtimestamp(nominal / 1000, UTC)
        local = utc.astimezone(zone)
        return {
            "date": local.date().isoformat(),
            "time": local.isoformat(),
            "utc": shown_time(nominal),
            "timestamp": nominal // 1000,
            "schedule": schedule,
        }[value.name]
    if isinstance(value, Mapping):
        return {name: filled(each, schedule, nominal, zone) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [filled(each, schedule, nominal, zone) for each in value]
    return value


def shown_time(milliseconds: int) -> str:
    """Return a moment as it is written in keys and inputs: 2026-11-15T05:00:00Z."""
    moment = datetime.fromtimestamp(milliseconds // 1000, UTC).replace(tzinfo=None)
    fraction = f".{milliseconds % 1000:03d}" if milliseconds % 1000 else ""
    return f"{moment.isoformat()}{fraction}Z"


def tick_key(schedule: str, nominal: int) -> str:
    """Return the key of a tick's run: a second start with it finds the first run."""
    return f"tick:{schedule}@{shown_time(nominal)}"


def trigger_key(schedule: str, moment: int) -> str:
    """Return the key of a run that an actor asked for: never that of a tick at the same time."""
    return f"trigger:{schedule}@{shown_time(moment)}"


#: Characters of a schedule's name that fit into the key of every run that it may start.
LONGEST_NAME = 255 - len(trigger_key("", 1))


def check_length(name: str) -> None:
    """Raise InvalidSchedule for a name that is too long: that of the workflow, if it has none."""
    if len(name) > LONGEST_NAME:
        problem = (
            f"it has {len(name):,} characters, and may have {LONGEST_NAME}: its runs have a key of "
            "the name and the time of their tick; a schedule without a name has that of its "
            'workflow, so give it a shorter one: Schedule(…, name="mornings")'
        )
        raise InvalidSchedule("the name", f"{name[:50]}…", problem)

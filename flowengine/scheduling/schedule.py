"""A schedule: when a workflow is started by the clock, and what happens if that is not possible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from typing import Any, Literal, get_args
from zoneinfo import ZoneInfo

from flowengine.errors import InvalidSchedule
from flowengine.retention import EXPECTED_AGE, age_of
from flowengine.scheduling.cron import Cron
from flowengine.scheduling.tick_values import from_stored, to_stored
from flowengine.scheduling.zones import moment_of, zone_named

Overlap = Literal["allow", "skip", "queue", "replace"]
CatchUp = Literal["none", "last", "all"]

MAX_NAME = 200  #: characters: the key of a run has the name and the time of its tick
_LONGEST = 366 * 86_400_000
_OPTIONS = ("every", "timezone", "overlap", "catch_up", "jitter", "start", "end", "name", "inputs")


@dataclass(frozen=True)
class Schedule:
    """The times at which a workflow is started: a cron expression, or a fixed interval.

    `cron` has five fields, or six with seconds first, or is a name like ``@daily``; `every` is an
    interval like ``"15m"``, counted from `start` or from midnight UTC. Local times are those of
    `timezone`. `inputs` are values of the workflow; ``tick.date`` and its kin stand for the tick.

    If a run of the schedule is open, `overlap` starts another ("allow"), none ("skip"), one after
    its end ("queue"), or cancels it first ("replace"). Of ticks that were missed, `catch_up` starts
    none, the last, or all up to 100. A start is delayed by up to `jitter`, the same for the same
    tick. No tick is before `start` or after `end`. `name` is that of the workflow, if left out.
    """

    cron: str | None = None
    every: str | float | timedelta | None = field(default=None, kw_only=True)
    timezone: str | ZoneInfo | timezone = field(default="UTC", kw_only=True)
    inputs: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    overlap: Overlap = field(default="allow", kw_only=True)
    catch_up: CatchUp = field(default="none", kw_only=True)
    jitter: str | float | timedelta = field(default=0, kw_only=True)
    start: str | date | None = field(default=None, kw_only=True)
    end: str | date | None = field(default=None, kw_only=True)
    name: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        _check_name(self.name)
        for place, value, allowed in (
            ("overlap", self.overlap, get_args(Overlap)),
            ("catch_up", self.catch_up, get_args(CatchUp)),
        ):
            if value not in allowed:
                raise InvalidSchedule(place, str(value), f"write {', '.join(allowed)}")
        if (self.cron is None) == (self.every is None):
            given = "neither" if self.cron is None else "both"
            raise InvalidSchedule("the time", given, "give either a cron expression or `every`")
        if not isinstance(self.inputs, Mapping):
            raise InvalidSchedule("inputs", repr(self.inputs)[:100], "write a map of the inputs")
        # The plain forms are kept: two equal schedules are stored as the same text.
        set_field = object.__setattr__
        zone = self.timezone
        set_field(self, "timezone", getattr(zone, "key", None) or str(zone))
        if self.cron is not None:
            if not isinstance(self.cron, str):
                problem = 'write it as text: "0 6 * * *"'
                raise InvalidSchedule("the cron expression", repr(self.cron)[:100], problem)
            Cron(self.cron, self.zone)
        else:
            set_field(self, "every", _duration("every", self.every, 1000))
        set_field(self, "jitter", _duration("jitter", self.jitter, 0))
        set_field(self, "start", _iso("start", self.start, self.zone))
        set_field(self, "end", _iso("end", self.end, self.zone))
        if self.start and self.end and self.starts_at > self.ends_at:  # type: ignore[operator]
            raise InvalidSchedule("end", str(self.end), f"it is before the start, {self.start}")
        to_stored(self.inputs)

    @property
    def zone(self) -> ZoneInfo:
        return zone_named(str(self.timezone))

    @property
    def period(self) -> int:
        """The interval in milliseconds, 0 for a cron expression."""
        return 0 if self.every is None else round(float(self.every) * 1000)  # type: ignore[arg-type]

    @property
    def max_delay(self) -> int:
        """The jitter in milliseconds."""
        return round(float(self.jitter) * 1000)  # type: ignore[arg-type]

    @property
    def starts_at(self) -> int | None:
        return _milliseconds(self.start)

    @property
    def ends_at(self) -> int | None:
        return _milliseconds(self.end)

    @property
    def text(self) -> str:
        """The times in one line, for lists."""
        shown = self.cron or f"every {_shown_seconds(self.period)}"
        return shown if self.every is not None else f"{shown} {self.timezone}"

    def as_json(self) -> dict[str, Any]:
        """Return the stored form; defaults are left out."""
        plain = Schedule("@daily")
        options = {name: getattr(self, name) for name in _OPTIONS if name != "inputs"}
        kept = {name: value for name, value in options.items() if value != getattr(plain, name)}
        if self.inputs:
            kept["inputs"] = to_stored(self.inputs)
        return kept if self.cron is None else {"cron": self.cron, **kept}

    @classmethod
    def from_json(cls, stored: Any) -> Schedule:
        """Read the stored form; raise InvalidSchedule."""
        if not isinstance(stored, Mapping):
            raise InvalidSchedule("the definition", repr(stored)[:100], "it is not a map")
        if unknown := sorted(set(stored) - {"cron", *_OPTIONS}):
            known = ", ".join(("cron", *_OPTIONS))
            raise InvalidSchedule("the definition", str(unknown[0]), f"the options are {known}")
        options = dict(stored)
        if isinstance(options.get("inputs"), Mapping):
            options["inputs"] = from_stored(options["inputs"])
        return cls(options.pop("cron", None), **options)


def _check_name(name: object) -> None:
    is_text = isinstance(name, str) and name.isprintable() and name == name.strip()
    if not is_text or len(str(name)) > MAX_NAME or "@" in str(name):
        problem = f"write up to {MAX_NAME} printable characters without @"
        raise InvalidSchedule("the name", str(name)[:100], problem)


def _duration(place: str, value: object, least: int) -> float:
    """Return a duration in seconds."""
    try:
        if isinstance(value, str):
            milliseconds = age_of(value)
        elif isinstance(value, timedelta):
            milliseconds = round(value.total_seconds() * 1000)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            milliseconds = round(value * 1000)
        else:
            raise ValueError
    except (ValueError, OverflowError):
        raise InvalidSchedule(place, str(value)[:100], f"write {EXPECTED_AGE}") from None
    if not least <= milliseconds <= _LONGEST:
        problem = f"it must be between {least // 1000} s and 366 days"
        raise InvalidSchedule(place, str(value)[:100], problem)
    seconds = milliseconds / 1000
    return int(seconds) if seconds.is_integer() else seconds


def _iso(place: str, value: object, zone: ZoneInfo) -> str | None:
    """Return a bound as text with an offset; a local time is one of the schedule's zone."""
    if value is None:
        return None
    try:
        if isinstance(value, datetime):
            moment = value
        elif isinstance(value, date):
            moment = datetime.combine(value, time())
        elif isinstance(value, str):
            moment = datetime.fromisoformat(value)
        else:
            raise ValueError
        if moment.tzinfo is None:
            utc = moment_of(zone, moment)
            moment = utc.replace(tzinfo=timezone.utc).astimezone(zone)  # noqa: UP017
        return moment.isoformat()
    except (ValueError, OverflowError):
        problem = "write a time as 2026-11-15T06:00 or 2026-11-15T06:00+01:00"
        raise InvalidSchedule(place, str(value)[:100], problem) from None


def _milliseconds(iso: str | date | None) -> int | None:
    return None if iso is None else round(datetime.fromisoformat(str(iso)).timestamp() * 1000)


def _shown_seconds(milliseconds: int) -> str:
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000)):
        if milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds / 1000:g}s"

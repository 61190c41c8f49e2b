"""Errors of schedules: of their definition, and of questions about them."""

from __future__ import annotations

from dataclasses import dataclass

from flowengine.errors.flowengine_error import FlowengineError


@dataclass(eq=False, repr=False)
class InvalidSchedule(FlowengineError, ValueError):
    """A schedule cannot be read: its cron expression, its time zone, or an option."""

    place: str  #: the option, and for a cron expression the field
    value: str
    problem: str  #: with the cure
    _text = "{place} of the schedule is {value!r}: {problem}"


@dataclass(eq=False, repr=False)
class UnknownSchedule(FlowengineError, LookupError):
    """No schedule has that name."""

    name: str
    hint: str = ""
    _text = "there is no schedule {name!r}{hint}; `flowengine schedules` shows all"


@dataclass(eq=False, repr=False)
class ScheduleRefused(FlowengineError):
    """An action on a schedule is not possible."""

    name: str
    action: str
    problem: str  #: with the cure
    _text = "schedule {name!r} cannot {action}: {problem}"

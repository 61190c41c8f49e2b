"""Schedules of Celery's beat: entries that start a workflow become rows of our own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from celery.schedules import crontab
from celery.schedules import schedule as interval

from flowengine.authoring import workflow_named
from flowengine.engine import Engine
from flowengine.errors import FlowengineError
from flowengine.scheduling import Schedule
from flowengine.tasks.celery_tasks import EXECUTE

SOURCE = "beat"
_ARGUMENTS = ("workflow", "inputs", "key", "if_failed")  #: of a message that starts a workflow
#: Options of a message, of which a schedule has no need: it starts runs without one, and skips late
#: ticks.
_OF_MESSAGES = {
    *("queue", "exchange", "routing_key", "expires", "serializer", "compression"),
    *("delivery_mode", "ignore_result", "retry", "retry_policy"),
}


@dataclass(frozen=True, slots=True)
class AdoptedEntry:
    """An entry of `beat_schedule`, and what became of it."""

    entry: str
    workflow: str
    schedule: str  #: its times; empty if it was refused
    problem: str = ""  #: why it was refused


def adopt(app: Any, engine: Engine, *, dry_run: bool = False) -> list[AdoptedEntry]:
    """Store a schedule for each entry whose task is a workflow, under the name of the entry.

    Idempotent. The entry itself stays in the app's configuration: until it is removed there, beat
    starts runs, too.
    """
    found = []
    for name, workflow, inputs, entry in _starts(app.conf.beat_schedule or {}):
        try:
            schedule = _schedule(app, name, inputs, entry)
            flow = workflow_named(workflow)
            if flow is None:
                raise _Refused(f"the app has no workflow {workflow!r}; import its module")
            if dry_run:
                engine.schedules.check(flow.program(), flow.name, schedule)
            else:
                engine.schedules.put(flow.program(), flow.name, schedule, source=SOURCE)
            found.append(AdoptedEntry(name, flow.name, schedule.text))
        except (_Refused, FlowengineError) as problem:
            found.append(AdoptedEntry(name, workflow, "", str(problem)))
    return found


class _Refused(Exception):
    """An entry cannot be adopted."""


def _starts(entries: Mapping[str, Any]) -> Iterator[tuple[str, str, Any, Mapping[str, Any]]]:
    """Return the entries that start a workflow, with its name and its inputs."""
    for name, entry in entries.items():
        args, kwargs = tuple(entry.get("args") or ()), dict(entry.get("kwargs") or {})
        if entry.get("task") == EXECUTE:
            given = dict(zip(_ARGUMENTS, args, strict=False)) | kwargs
            yield name, str(given.get("workflow", "")), given.get("inputs") or {}, entry
        elif workflow_named(str(entry.get("task"))) is not None:
            yield name, entry["task"], None if args else kwargs, entry


def _schedule(app: Any, name: str, inputs: Any, entry: Mapping[str, Any]) -> Schedule:
    _check_options(entry)
    if not isinstance(inputs, Mapping):
        raise _Refused("its inputs have no names; give them as kwargs")
    when = entry.get("schedule")
    options: dict[str, Any] = {"name": name, "inputs": dict(inputs)}
    if isinstance(when, crontab):
        zone = str(app.conf.timezone or "UTC")
        return Schedule(_cron(when), timezone=zone, **options)
    if isinstance(when, interval):
        when = when.run_every
    if isinstance(when, int | float | timedelta):
        return Schedule(every=when, **options)
    raise _Refused(f"a schedule of type {type(when).__name__} has no fixed times")


def _check_options(entry: Mapping[str, Any]) -> None:
    """Raise _Refused for an entry that would do something else as a schedule."""
    if entry.get("task") == EXECUTE:
        given = [*_ARGUMENTS[: len(entry.get("args") or ())], *(entry.get("kwargs") or ())]
        if unknown := [name for name in given if name not in _ARGUMENTS[:2]]:
            own = "each of its ticks has a key of its own"
            raise _Refused(f"a schedule has no {str(unknown[0])[:100]!r}: {own}")
    if unknown := sorted({*(entry.get("options") or ())} - _OF_MESSAGES):
        what = "the entry cannot be carried over"
        raise _Refused(f"a schedule has no option {str(unknown[0])[:100]!r}: {what}")


def _cron(when: Any) -> str:
    """Return a crontab of Celery as an expression of five fields."""
    names = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
    fields = [_field(getattr(when, f"_orig_{name}")) for name in names]
    if fields[2] != "*" and fields[4] != "*":
        # Celery demands both days, cron one of them.
        raise _Refused("it names days of the month and of the week, which cron reads differently")
    return " ".join(fields)


def _field(value: Any) -> str:
    if isinstance(value, set | frozenset | list | tuple):
        return ",".join(str(each) for each in sorted(value))
    return str(value).replace(" ", "")

"""`flowengine schedules`: lists, one schedule, and the ticks of a backfill."""

from __future__ import annotations

import sys
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import click
from rich.text import Text

from flowengine.actors import Actor
from flowengine.cli import configuration
from flowengine.cli.database import acting_engine, open_engine
from flowengine.cli.streams import json_of
from flowengine.cli.terminal import console, line, print_table, table_of
from flowengine.engine.results import duration
from flowengine.engine.schedule_records import ScheduleInfo
from flowengine.errors import InvalidSchedule
from flowengine.scheduling.states import ScheduleState
from flowengine.store.schedules import TickRecord

_MAX_CELL = 300  #: characters of a reason or an error in a list
STATE_COLOURS = {
    ScheduleState.ACTIVE: "green",
    ScheduleState.PAUSED: "yellow",
    ScheduleState.STOPPED: "red",
    ScheduleState.ENDED: "dim",
}


def show_list(tenant: str | None, *, as_json: bool) -> None:
    with open_engine() as engine:
        found = engine.schedules.list(tenant=tenant)
    if as_json:
        click.echo(json_of([asdict(each) for each in found]))
    elif found:
        print_table(table_of(("name", "times", "state", "next tick"), map(_row, found)))
    else:
        console.print(line("no schedules: a worker publishes those of its code when it starts"))


def _row(each: ScheduleInfo) -> tuple[Text, ...]:
    return (
        line(each.name),
        line(_times(each)),
        line((each.state, STATE_COLOURS[each.state])),
        line(_next(each), limit=_MAX_CELL),
    )


def _times(info: ScheduleInfo) -> str:
    try:
        return info.schedule.text
    except InvalidSchedule:
        return "?"


def _next(info: ScheduleInfo) -> str:
    if info.state == ScheduleState.STOPPED:
        return info.error or ""
    if info.state == ScheduleState.PAUSED:
        told = f"by {Actor.shown(info.actor or '')}"
        return f"{told}: {info.reason}" if info.reason else told
    return "" if info.next_tick is None else _local(info.next_tick, info)


def _local(milliseconds: int, info: ScheduleInfo) -> str:
    """Return a time in the zone of the schedule."""
    try:
        zone: ZoneInfo | Any = info.schedule.zone
    except InvalidSchedule:
        zone = UTC
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone(zone)
    return f"{moment:%Y-%m-%d %H:%M:%S} {moment.tzname()}"


def show(name: str, tenant: str | None, limit: int, *, as_json: bool) -> None:
    with open_engine() as engine:
        info = engine.schedules.get(name, tenant=tenant)
        ticks = engine.schedules.ticks(name, most=limit, tenant=tenant)
    if as_json:
        click.echo(json_of({**asdict(info), "ticks": [tick._asdict() for tick in ticks]}))
        return
    console.print(line((info.name, "bold"), f"  {_times(info)}"))
    console.print(line("workflow   ", info.workflow))
    console.print(line("state      ", (info.state, STATE_COLOURS[info.state])))
    if told := _next(info):
        label = "next tick  " if info.state == ScheduleState.ACTIVE else "because    "
        console.print(line(label, told, limit=_MAX_CELL))
    others = {k: v for k, v in info.definition.items() if k not in ("cron", "every", "timezone")}
    if jitter := others.pop("jitter", None):
        console.print(line("jitter     ", f"up to {duration(round(jitter * 1000))}"))
    for key, value in others.items():
        console.print(line(f"{key:<11}", value if isinstance(value, str) else json_of(value, None)))
    if ticks:
        rows = (
            (
                line(_local(tick.nominal, info)),
                line(_outcome(tick)),
                line((tick.run_id or "")[:8]),
                line(_because(tick), limit=_MAX_CELL),
            )
            for tick in ticks
        )
        print_table(table_of(("tick", "outcome", "run", "because"), rows))


def _outcome(tick: TickRecord) -> str:
    if tick.last is None:
        return tick.outcome
    return f"{tick.outcome} {tick.tick_count:,}" if tick.tick_count else f"{tick.outcome} many"


def _because(tick: TickRecord) -> str:
    who = Actor.shown(tick.actor) if tick.actor else ""
    return ": ".join(filter(None, (who, tick.reason)))


def backfill(name: str, first: str, last: str, given: dict[str, Any], *, as_json: bool) -> None:
    with acting_engine() as engine:
        info = engine.schedules.get(name, tenant=given["tenant"])
        told = engine.schedules.backfill(name, first, last, **given)
    if as_json:
        click.echo(json_of([asdict(each) for each in told]))
        return
    started = 0
    for each in told:
        if each.has_run:
            words = f"has run: {(each.run_id or '')[:8]}"
        else:
            started += 1
            words = f"run {each.run_id[:8]}" if each.run_id else "would start"
        console.print(line(f"{_local(each.nominal, info)}  {words}"))
    word = "would start" if given["dry_run"] else "started"
    console.print(line(f"{word} {started:,} of {len(told):,} ticks"))


def adopt(*, dry_run: bool, as_json: bool) -> None:
    """Adopt entries of beat; exits with 1 if one was refused."""
    app = configuration.celery_app()
    if app is None:
        raise click.UsageError("name the app that has the beat_schedule: flowengine -A APP …")
    from flowengine.assembly.adopted_schedules import adopt as adopt_entries  # imports Celery

    with open_engine() as engine:
        found = adopt_entries(app, engine, dry_run=dry_run)
    if as_json:
        click.echo(json_of([asdict(each) for each in found]))
    for each in [] if as_json else found:
        told = each.problem or f"{each.workflow}, {each.schedule}"
        verb = "is refused" if each.problem else "would be adopted" if dry_run else "is adopted"
        console.print(line(f"{each.entry} {verb}: {told}"), soft_wrap=True)
    if not as_json:
        if not found:
            console.print(line("no entry of beat_schedule starts a workflow"))
        elif not dry_run and not all(each.problem for each in found):
            console.print(
                line("remove these entries from beat_schedule: until then beat starts runs, too")
            )
    sys.exit(1 if any(each.problem for each in found) else 0)

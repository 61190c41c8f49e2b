"""`flowengine schedules`: show, pause, resume, trigger, backfill and adopt schedules.

Like `commands`, this imports neither a database nor rich: help must be shown at once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from flowengine.cli.control_command import ACTOR, JSON, REASON, named_actor

_NAME = click.argument("name")
_TENANT = click.option("--tenant", help="Schedules of this tenant.")
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Show what would be done.")


@click.group(invoke_without_command=True)
@click.pass_context
def schedules(context: click.Context) -> None:
    """Show the schedules that start workflows by the clock, and control them."""
    if context.invoked_subcommand is None:
        context.invoke(list_schedules)


@schedules.command("list")
@_TENANT
@JSON
def list_schedules(tenant: str | None = None, as_json: bool = False) -> None:
    """Show all schedules: times, state and next tick."""
    from flowengine.cli import schedules_view

    schedules_view.show_list(tenant, as_json=as_json)


@schedules.command()
@_NAME
@_TENANT
@click.option("--limit", type=click.IntRange(1, 10_000), default=10, show_default=True)
@JSON
def show(name: str, tenant: str | None, limit: int, as_json: bool) -> None:
    """Show one schedule and its last ticks."""
    from flowengine.cli import schedules_view

    schedules_view.show(name, tenant, limit, as_json=as_json)


@schedules.command()
@_NAME
@REASON
@ACTOR
@_TENANT
def pause(name: str, **given: Any) -> None:
    """Start no more runs of a schedule until it is resumed; open runs go on."""
    _change("pause", name, given)


@schedules.command()
@_NAME
@REASON
@ACTOR
@_TENANT
def resume(name: str, **given: Any) -> None:
    """Start runs again; `catch_up` decides about the ticks that were missed."""
    _change("resume", name, given)


@schedules.command()
@_NAME
@_TENANT
def remove(name: str, tenant: str | None) -> None:
    """Remove a schedule and its ticks; its runs stay.

    A worker that has it in its code publishes it again when it starts.
    """
    from flowengine.cli.database import open_engine

    with open_engine() as engine:
        engine.schedules.remove(name, tenant=tenant)
    click.echo(f"schedule {name} is removed")


@schedules.command()
@_NAME
@click.option(
    "--input", "-i", "inputs", multiple=True, metavar="NAME=VALUE", help="As JSON, or text."
)
@REASON
@ACTOR
@_TENANT
def trigger(name: str, inputs: Sequence[str], **given: Any) -> None:
    """Start a run of a schedule now, also if it is paused."""
    from flowengine.cli.database import acting_engine
    from flowengine.evaluator.states import RunState

    given["actor"] = named_actor(given["actor"])
    with acting_engine() as engine:
        run_id = engine.schedules.trigger(name, inputs=dict(map(_input, inputs)), **given)
        is_queued = engine.get(run_id, tenant=given["tenant"]).state == RunState.QUEUED
    click.echo(f"run {run_id} is {'queued behind another' if is_queued else 'started'}")


@schedules.command()
@_NAME
@click.argument("span", metavar="FROM..TO")
@_DRY_RUN
@REASON
@ACTOR
@_TENANT
@JSON
def backfill(name: str, span: str, as_json: bool, **given: Any) -> None:
    """Start the runs of past ticks, from a date or time to another.

    A tick that has run is not run again. Local times are those of the schedule's zone.
    """
    from flowengine.cli import schedules_view

    first, dots, last = span.partition("..")
    if not dots or not first or not last:
        raise click.BadParameter("write FROM..TO, as 2026-11-01..2026-11-14", param_hint="FROM..TO")
    given["actor"] = named_actor(given["actor"])
    schedules_view.backfill(name, first, last, given, as_json=as_json)


@schedules.command()
@_DRY_RUN
@JSON
def adopt(dry_run: bool, as_json: bool) -> None:
    """Store entries of Celery's beat_schedule whose task is a workflow as schedules.

    The app is that of `flowengine -A`. Remove the entries from its configuration afterwards:
    until then beat starts runs, too.
    """
    from flowengine.cli import schedules_view

    schedules_view.adopt(dry_run=dry_run, as_json=as_json)


COMMANDS = (schedules,)


def _change(action: str, name: str, given: dict[str, Any]) -> None:
    from flowengine.cli.database import open_engine

    given["actor"] = named_actor(given["actor"])
    with open_engine() as engine:
        changed = getattr(engine.schedules, action)(name, **given)
    click.echo(f"schedule {name} is {changed.state}")


def _input(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter("write NAME=VALUE", param_hint="--input")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value

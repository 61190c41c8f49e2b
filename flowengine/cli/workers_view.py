"""`flowengine workers`: the list of workers, and the answer to a change of their limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click
from rich.table import Table

from flowengine.actors import Actor
from flowengine.cli.database import open_engine
from flowengine.cli.streams import json_of
from flowengine.cli.terminal import console, line, print_table, table_of
from flowengine.engine.results import duration
from flowengine.engine.workers import WorkerInfo

_COLUMNS = ("worker", "machine", "task lists", "version", "heartbeat", "tasks", "workflows")
_MAX_CELL = 200  #: characters of a list of task lists


def show_list(*, as_json: bool) -> None:
    with open_engine() as engine:
        found = engine.workers.list()
        now = engine.database.now()
    if as_json:
        click.echo(json_of([asdict(each) for each in found]))
    elif found:
        print_table(_table(found, now))
    else:
        console.print(line("no workers: `flowengine work FOLDER` or `celery worker` starts one"))


def _table(found: Sequence[WorkerInfo], now: int) -> Table:
    rows = ([line(text, limit=_MAX_CELL) for text in cells(each, now)] for each in found)
    return table_of((*_COLUMNS, "state"), rows)


def cells(info: WorkerInfo, now: int) -> tuple[str, ...]:
    """Return the texts of a worker's row: tries and runs with their limits, as 3/8."""
    return (
        info.name,
        info.machine,
        ", ".join(info.task_lists) or "all",
        info.version,
        duration(max(0, now - info.heartbeat)),
        _of(info.tries, info.max_tasks),
        _of(info.runs, info.max_workflows),
        info.state,
    )


def _of(held: int, limit: int | None) -> str:
    return str(held) if limit is None else f"{held}/{limit}"


def set_limits(
    name: str, changes: Mapping[str, Any], actor: str, reason: str, *, as_json: bool
) -> None:
    with open_engine() as engine:
        limits = engine.workers.set_limits(name, actor=actor, reason=reason, **changes)
        interval = engine.settings.heartbeat_interval
    if as_json:
        click.echo(json_of({"worker": name, **asdict(limits), "actor": str(Actor.of(actor))}))
        return
    told = [
        f"{option} {'as its settings say' if value is None else f'at most {value}'}"
        for option, value in asdict(limits).items()
    ]
    console.print(line(f"worker {name}: {', '.join(told)}; obeyed within {interval:g} s"))

"""`flowengine workers`: the list of workers, and the answer to a change of their limits."""

from __future__ import annotations

import sys
import time
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
_LOOK = 0.2  #: seconds between two looks at a worker that is drained
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
        _state(info),
    )


def _state(info: WorkerInfo) -> str:
    """Return the state of its registration, or how far it is drained, and by whom."""
    if not info.is_drained:
        return info.state
    return f"{'draining' if info.tries else 'drained'} by {info.limits_set_by}"


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
    told = [f"{option} {_words(value)}" for option, value in asdict(limits).items()]
    console.print(line(f"worker {name}: {', '.join(told)}; obeyed within {interval:g} s"))


def _words(limit: int | None) -> str:
    if limit == 0:
        return "none: it is drained"
    return "as its settings say" if limit is None else f"at most {limit}"


def drain(name: str, wait: float | None, actor: str, reason: str, *, as_json: bool) -> None:
    with open_engine() as engine:
        engine.workers.drain(name, actor=actor, reason=reason)
        interval, is_idle = engine.settings.heartbeat_interval, None
        if wait is not None:
            # Before that, a process may claim that has not read the change.
            begun, is_idle = time.monotonic(), False
            while not is_idle and time.monotonic() - begun < wait:
                time.sleep(_LOOK)
                is_idle = time.monotonic() - begun >= interval and engine.workers.is_idle(name)
    if as_json:
        about = {} if is_idle is None else {"is_idle": is_idle}
        click.echo(json_of({"worker": name, "drained": True, "actor": actor, **about}))
    elif is_idle is None:
        text = f"worker {name} claims nothing more within {interval:g} s"
        console.print(line(f"{text}; `flowengine workers` shows what it still holds"))
    else:
        text = "holds no task: stop it now" if is_idle else f"still holds tasks after {wait:g} s"
        console.print(line(f"worker {name} {text}"))
    sys.exit(1 if is_idle is False else 0)


def undrain(name: str, actor: str, reason: str, *, as_json: bool) -> None:
    with open_engine() as engine:
        engine.workers.undrain(name, actor=actor, reason=reason)
        interval = engine.settings.heartbeat_interval
    if as_json:
        click.echo(json_of({"worker": name, "drained": False, "actor": actor}))
        return
    console.print(line(f"worker {name} claims tasks again within {interval:g} s"))

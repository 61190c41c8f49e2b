"""`flowengine logs`: what the steps of a run have printed and logged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any

import click
from rich.text import Text

from flowengine import retention
from flowengine.cli.database import open_engine
from flowengine.cli.streams import json_of
from flowengine.cli.terminal import line, print_line
from flowengine.engine import Engine, RunInfo
from flowengine.engine.log_entries import LogEntry, is_step
from flowengine.engine.presentation import clock
from flowengine.printable import printable
from flowengine.shown_paths import shown_path
from flowengine.step_logs.lines import LOG
from flowengine.store.database import system_clock

_STYLES = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}
_COMPARED = 1_000  #: names of steps
_MAX_TEXT = 20_000  #: characters of a line on a terminal; `--json` has all


def show_logs(
    run_id: str,
    *,
    steps: Sequence[str],
    since: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    written = clock(system_clock())
    with open_engine() as engine:
        run = engine.find(run_id)
        if steps and (run.is_final or not options.get("follow")):
            _check_steps(engine, run, steps)
        found = engine.logs(run.id, step=list(steps), since=_moment(since), **options)
        name = run.workflow.rpartition(".")[2]
        for entry in found:
            if as_json:
                click.echo(json_of(asdict(entry), indent=None))
            else:
                print_line(log_line(entry, written(entry.at), name))


def _check_steps(engine: Engine, run: RunInfo, steps: Sequence[str]) -> None:
    """Refuse the name of a step that has no try: its log would be empty, and a typo unseen."""
    with engine.database.read() as session:
        paths = {task.path for task in session.logs.tasks_of(run.id)}
    for step in steps:
        if not any(is_step(path, step) for path in paths):
            names = sorted(paths | {path.rpartition(".")[2] for path in paths})
            near = get_close_matches(step[:100], names[:_COMPARED], 3)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            if not run.is_final:
                hint += "; with -f the lines of a step are shown when it begins"
            raise click.BadParameter(
                f"no step {printable(repr(step), limit=100)} of run {run.id[:8]} was begun{hint}",
                param_hint="--step",
            )


def _moment(text: str | None) -> datetime | timedelta | None:
    if text is None:
        return None
    try:
        return timedelta(milliseconds=retention.age_of(text))
    except OverflowError:
        problem = "is longer ago than times are known"
    except ValueError:
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            problem = "is neither an age like 10m nor a time like 2026-11-17T14:30"
    raise click.BadParameter(f"{printable(repr(text), limit=100)} {problem}", param_hint="--since")


def log_line(entry: LogEntry, at: str, workflow: str) -> Text:
    """Return a line with its time, its step and its source."""
    path = shown_path(entry.path.removeprefix(f"{workflow}."))
    again = f" try {entry.try_number}" if entry.try_number > 1 else ""
    source = f"{entry.level} {entry.logger}" if entry.stream == LOG else entry.stream
    return line(
        (f"{at}.{entry.at % 1000:03} ", "dim"),
        (f"{path}{again} ", "cyan"),
        (f"{source}: ", _STYLES.get(entry.level, "dim")),
        entry.text,
        limit=_MAX_TEXT,
    )

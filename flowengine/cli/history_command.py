"""`flowengine history` and `flowengine export`: what happened to a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from flowengine.cli.database import open_engine
from flowengine.cli.streams import json_of
from flowengine.cli.terminal import console, line
from flowengine.engine.history import HistoryEntry
from flowengine.engine.presentation import clock
from flowengine.engine.results import duration, step_status
from flowengine.evaluator.states import StepState
from flowengine.shown_paths import shown_path
from flowengine.store.database import system_clock

_MAX_STEPS = 20  #: of one commit; `--json` has all


def show_history(run_id: str, after: int, limit: int, *, as_json: bool) -> None:
    with open_engine() as engine:
        info = engine.find(run_id)
        entries = engine.history(info.id, after=after, limit=limit)
    if as_json:
        click.echo(json_of([asdict(entry) for entry in entries]))
        return
    for entry in entries:
        at = duration(entry.at - info.created)
        inputs = ", ".join(
            f"{count} × {name}" if count > 1 else name for name, count in entry.triggers.items()
        )
        console.print(
            line((f"{at:>9} ", "dim"), f"{entry.revision}  ", (inputs, "cyan"), f"  {entry.state}")
        )
        for text in _lines(entry):
            console.print(line(f"{'':>12}{text}"), soft_wrap=True)
    if len(entries) == limit:
        more = f"… more with --after {entries[-1].revision}"
        console.print(line((more, "dim")))


def _lines(entry: HistoryEntry) -> Iterator[str]:
    written = clock(system_clock())
    for act in entry.interventions:
        subject = f" {shown_path(act.subject)}" if act.subject else ""
        reason = f": {act.reason}" if act.reason else ""
        refused = f" (refused: {act.refused})" if act.refused else ""
        yield f"{act.kind}{subject} by {act.actor or 'somebody'}{reason}{refused}"
    for one in entry.tries:
        if one.outcome != "succeeded" or one.number > 1:
            error = f" with {one.error_type}" if one.error_type else ""
            yield f"{shown_path(one.path)}: try {one.number} {one.outcome}{error}"
    for step in entry.steps[:_MAX_STEPS]:
        status = step_status(step.state)
        label = "begun" if step.state == StepState.EVENT_TRANSMIT else status.value
        yield f"{status.symbol} {shown_path(step.path)}  {label}"
    hidden = len(entry.steps) - _MAX_STEPS + entry.omitted
    if hidden > 0:
        yield f"… {hidden:,} more steps"
    for retry in entry.retries:
        yield f"↻ {shown_path(retry.path)}  try {retry.number} at {written(retry.due)}"
    for hit in entry.reused:
        yield f"≡ {shown_path(hit.path)}  result of {shown_path(hit.source)} in run {hit.run[:8]}"
    for timer in entry.timers:
        yield f"☾ {shown_path(timer.path)}  until {written(timer.due)}"


def export(run_id: str, output: Path | None) -> None:
    with open_engine() as engine:
        info = engine.find(run_id)
        document = engine.export(info.id)
    text = json.dumps(document, separators=(",", ":"))
    if output is None:
        click.echo(text)
        return
    try:
        output.write_text(text + "\n")
    except OSError as problem:
        raise click.ClickException(f"{output} cannot be written: {problem}") from None
    console.print(line(f"run {info.id[:8]} is exported to {output} ({len(text):,} bytes)"))

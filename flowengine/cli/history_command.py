"""`flowengine history` and `flowengine export`: what happened to a run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from flowengine.actors import Actor
from flowengine.cli.database import open_engine
from flowengine.cli.streams import json_of
from flowengine.cli.terminal import console, line
from flowengine.engine.history import HistoryEntry, StepTransition
from flowengine.engine.presentation import clock
from flowengine.engine.results import RunInfo, duration, step_status
from flowengine.evaluator import cancellation, deadlines
from flowengine.evaluator.states import StepState
from flowengine.private_files import private_opener
from flowengine.program.standard import WAITS
from flowengine.shown_paths import shown_path
from flowengine.store.database import system_clock

_MAX_STEPS = 20  #: of one commit; `--json` has all
_OTHER_ROWS = ("mailbox.", "state.block.")  #: states that no step has
#: Paths of blocks; a script and a mixin are steps, with brackets too.
_BLOCK = re.compile(r"\[(?!script\]|with-)[^\[\]]*\]$|\.[a-z]+-\d+$")
_UNTIL = {deadlines.TIMER: "deadline", deadlines.RUN_TIMER: "deadline", cancellation.TIMER: "ends"}


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
        for text in entry_lines(entry):
            console.print(line(f"{'':>12}{text}"), soft_wrap=True)
    if not entries:
        console.print(line((_nothing(info, after), "dim")), soft_wrap=True)
    if len(entries) == limit:
        more = f"… more with --after {entries[-1].revision}"
        console.print(line((more, "dim")))


def _nothing(info: RunInfo, after: int) -> str:
    """Say why no commit is shown: a run has its first with its start."""
    last = info.revision
    if after >= last:
        return f"run {info.id[:8]} has no commit behind {after}: its last one is {last}"
    return f"run {info.id[:8]} has no stored history behind {after}"


def entry_lines(entry: HistoryEntry) -> Iterator[str]:
    written = clock(system_clock())
    for act in entry.interventions:
        subject = f" {shown_path(act.subject)}" if act.subject else ""
        reason = f": {act.reason}" if act.reason else ""
        refused = f" (refused: {act.refused})" if act.refused else ""
        yield f"{act.kind}{subject} by {Actor.shown(act.actor) or 'somebody'}{reason}{refused}"
    for one in entry.tries:
        if one.outcome != "succeeded" or one.number > 1:
            error = f" with {one.error_type}" if one.error_type else ""
            # The transition below says that the function waits.
            ended = f"activation {one.number}" if one.outcome == "suspended" else ""
            ended = ended or f"try {one.number} {one.outcome}{error}"
            yield f"{shown_path(one.path)}: {ended}"
    steps = steps_of(entry)
    for step in steps[:_MAX_STEPS]:
        status = step_status(step.state)
        label = "begun" if step.state == StepState.EVENT_TRANSMIT else status.value
        yield f"{status.symbol} {shown_path(step.path)}  {label}"
    if (hidden := max(0, len(steps) - _MAX_STEPS) + entry.omitted) > 0:
        yield f"… {hidden:,} more steps"
    for retry in entry.retries:
        yield f"↻ {shown_path(retry.path)}  try {retry.number} at {written(retry.due)}"
    for hit in entry.reused:
        yield f"≡ {shown_path(hit.path)}  result of {shown_path(hit.source)} in run {hit.run[:8]}"
    for timer in entry.timers:
        yield f"☾ {shown_path(timer.path)}  {_UNTIL.get(timer.kind, 'until')} {written(timer.due)}"


def steps_of(entry: HistoryEntry) -> list[StepTransition]:
    """Return the transitions of steps, one for each: neither of blocks nor of mailboxes.

    A step that sleeps, or waits for an answer until a time, is shown by its timer.
    """
    waits = {timer.path for timer in entry.timers if timer.kind in WAITS}
    found: dict[str, StepTransition] = {}
    for step in entry.steps:
        is_row = step.state.startswith(_OTHER_ROWS) or _BLOCK.search(step.path)
        if is_row or (step.path in waits and step.state == StepState.EVENT_TRANSMIT):
            continue
        earlier = found.get(step.path)
        if earlier is None or _rank(step) < _rank(earlier):
            found[step.path] = step
    return list(found.values())


def _rank(step: StepTransition) -> int:
    """Return which of a step and its only block, which has the same path, is the step: the lower.

    A block ends before its step, and its failure may be caught.
    """
    if step.state not in StepState.FINAL:
        return 0
    return 1 if step.state == StepState.COMPLETE else 2


def export(run_id: str, output: Path | None) -> None:
    with open_engine() as engine:
        info = engine.find(run_id)
        document = engine.export(info.id)
    text = json.dumps(document, separators=(",", ":"))
    if output is None:
        click.echo(text)
        return
    try:
        with open(output, "w", opener=private_opener) as file:
            file.write(text + "\n")
    except OSError as problem:
        raise click.ClickException(f"{output} cannot be written: {problem}") from None
    console.print(line(f"run {info.id[:8]} is exported to {output} ({len(text):,} bytes)"))

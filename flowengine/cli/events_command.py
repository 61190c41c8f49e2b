"""`flowengine events`: the changes of events, of a run or of all runs."""

from __future__ import annotations

from dataclasses import asdict

import click

from flowengine.cli.database import open_engine
from flowengine.cli.streams import json_of
from flowengine.cli.terminal import console, line
from flowengine.engine.event_changes import EventChange
from flowengine.engine.presentation import clock
from flowengine.evaluator.states import EventState
from flowengine.shown_paths import shown_path
from flowengine.store.database import system_clock

_STYLES = {EventState.COMPLETED: "green", EventState.ERROR: "red", EventState.PROCESSING: "cyan"}


def show_events(
    run_id: str | None, after: int, timeout: float | None, *, follow: bool, as_json: bool
) -> None:
    """Print each change as a line; with `as_json` as a JSON object."""
    with open_engine() as engine:
        run = None if run_id is None else engine.find(run_id).id
        written = clock(system_clock())
        for change in engine.events(run, after=after, follow=follow, timeout=timeout):
            if as_json:
                click.echo(json_of(asdict(change), indent=None))
            else:
                _show(change, written(change.at), with_run=run is None)


def _show(change: EventChange, at: str, *, with_run: bool) -> None:
    run = f"{change.run_id[:8]} " if with_run else ""
    state = change.state.removeprefix("event.")
    again = change.try_number + change.losses > 1
    more = f"  try {change.try_number + change.losses}" if again else ""
    error = f"  {change.error_type}" if change.error_type else ""
    console.print(
        line(
            (f"{change.seq:>12}  {at}  ", "dim"),
            (f"{state:<10} ", _STYLES.get(change.state, "")),
            f"{run}{shown_path(change.path)}  {change.event_type}{more}{error}",
        ),
        soft_wrap=True,
    )

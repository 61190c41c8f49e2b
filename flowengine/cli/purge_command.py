"""`flowengine purge`: remove ended runs, or ended turns of agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from flowengine.cli.database import open_engine
from flowengine.cli.streams import json_of
from flowengine.cli.terminal import console, line


def purge_turns(older_than: int, *, dry_run: bool, as_json: bool) -> None:
    with open_engine() as engine:
        done = engine.purger.purge_turns(older_than=older_than / 1000, dry_run=dry_run)
    if as_json:
        click.echo(json_of({**asdict(done), "dry_run": dry_run}))
        return
    turns = "1 turn" if done.turns == 1 else f"{done.turns:,} turns"
    console.print(line(f"{'would remove' if dry_run else 'removed'} {turns}"))


def purge(
    older_than: int,
    filters: Mapping[str, Any],
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    with open_engine() as engine:
        done = engine.purge(older_than=older_than / 1000, dry_run=dry_run, **filters)
    if as_json:
        click.echo(json_of({**asdict(done), "dry_run": dry_run}))
        return
    runs = "1 run" if done.runs == 1 else f"{done.runs:,} runs"
    if dry_run:
        child_runs = ", and their child runs" if done.runs else ""
        console.print(line(f"would remove {runs} with {done.steps:,} steps{child_runs}"))
    else:
        values = f", {done.values:,} large values" if done.values else ""
        console.print(line(f"removed {runs} with {done.steps:,} steps{values}"))

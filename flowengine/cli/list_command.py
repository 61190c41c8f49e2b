"""`flowengine list`: the newest runs, by filter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click
from rich.table import Table

from flowengine.cli.database import open_queries
from flowengine.cli.run_filters import given_filters, resolved
from flowengine.cli.run_view import RUN_COLOURS, shown_state
from flowengine.cli.streams import json_of
from flowengine.cli.terminal import console, line, print_table
from flowengine.engine import RunInfo
from flowengine.engine.presentation import outstanding
from flowengine.engine.results import duration

_MAX_CELL = 500  #: characters of an error in a list


def list_runs(*, as_json: bool, cursor: str | None, limit: int, **given: Any) -> None:
    filters = given_filters(given)
    # Here a part of a name finds workflows too; an action wants the name of one.
    workflow = filters.pop("workflow", "")
    with open_queries() as (queries, database):
        filters = resolved(queries, filters)
        page = queries.list(named=workflow, cursor=cursor, limit=limit, **filters)
        now = database.now()
    if as_json:
        click.echo(json_of([{**asdict(info), "status": info.status} for info in page]))
        if page.cursor:
            click.echo(f"--cursor {page.cursor} continues the list", err=True)
        return
    if page:
        print_table(table_of_runs(page, now, 20 if "agents" in filters else 8))
    elif not page.cursor:
        about = f" of a workflow with {workflow!r} in its name" if workflow else ""
        if workflow and filters:
            about = f" with {workflow!r} in the name of their workflow match all filters"
        console.print(line(f"no runs{about}"))
    if page.cursor and (console.is_terminal or not page):
        console.print(line((f"… more with --cursor {page.cursor}", "dim")))


def table_of_runs(runs: Sequence[RunInfo], now: int, digits: int = 8) -> Table:
    """Return a table of runs, each with the first digits of its id: those of a turn share 12."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    has_tenants = any(info.tenant for info in runs)
    headings = ("run", *(("tenant",) if has_tenants else ()), "workflow", "state", "age", "took")
    for heading in (*headings, "waits for / error"):
        table.add_column(heading, overflow="fold")
    for info in runs:
        waits = info.alarm or outstanding(info.open_steps, info.retry, now, info.waits_for)
        table.add_row(
            info.id[:digits],
            *([line(info.tenant)] if has_tenants else []),
            line(info.workflow),
            line((shown_state(info), RUN_COLOURS.get(info.state, ""))),
            duration(now - info.created),
            duration((info.finished or now) - info.created),
            line(info.error_text or ("" if info.is_final else waits), limit=_MAX_CELL),
        )
    return table

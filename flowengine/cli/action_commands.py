"""`flowengine actions`: who did what, over all runs.

Like `commands`, this imports neither a database nor rich: help must be shown at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from flowengine.cli.control_command import JSON
from flowengine.cli.run_filters import AGE

if TYPE_CHECKING:
    from flowengine.engine.action_log import ActionInfo

_COLUMNS = ("when", "actor", "action", "run", "workflow", "about", "reason")
_MAX_CELL = 200


@click.command()
@click.option("--since", type=AGE, metavar="AGE", help="Done less than 1h, 30d, ... ago.")
@click.option("--older-than", type=AGE, metavar="AGE", help="Done longer than that ago.")
@click.option("--actor", help="Only of this actor: eva, person:eva, token:ci.")
@click.option(
    *("--action", "actions"),
    multiple=True,
    metavar="KIND",
    help="Only of this kind, as cancel or retry; several are possible.",
)
@click.option("--workflow", help="Only on runs of this workflow: its qualified or short name.")
@click.option("--tenant", help='Only on runs of this tenant; "": of none.')
@click.option("--cursor", help="Continue behind the page that printed this cursor.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@JSON
def actions(
    since: int | None,
    older_than: int | None,
    actions: Sequence[str],
    as_json: bool,
    **filters: Any,
) -> None:
    """Show who did what, the newest first: actions on runs, workers, workflows and limits.

    Answers to questions are in `history` of their run. Actions on a run are kept as long as the
    run.
    """
    from flowengine.cli.database import open_engine
    from flowengine.cli.streams import json_of
    from flowengine.cli.terminal import console, line, print_table, table_of

    ages: dict[str, Any] = {
        name: None if age is None else age / 1000
        for name, age in (("newer_than", since), ("older_than", older_than))
    }
    with open_engine() as engine:
        page = engine.actions(action=actions, **ages, **filters)
        now = engine.database.now()
    if as_json:
        click.echo(json_of([asdict(each) for each in page]))
        if page.cursor:
            click.echo(f"--cursor {page.cursor} continues the list", err=True)
        return
    if page:
        rows = ([line(text, limit=_MAX_CELL) for text in _cells(each, now)] for each in page)
        print_table(table_of(_COLUMNS, rows))
    elif not page.cursor:
        console.print(line("no actions"))
    if page.cursor and (console.is_terminal or not page):
        console.print(line((f"… more with --cursor {page.cursor}", "dim")))


def _cells(info: ActionInfo, now: int) -> tuple[str, ...]:
    from flowengine.engine.presentation import clock
    from flowengine.shown_paths import shown_path

    given = [f"{name} {_short(value)}" for name, value in info.options.items()]
    subject = "" if info.subject == info.workflow else shown_path(info.subject)
    return (
        clock(now)(info.at),
        info.actor,
        info.action,
        info.run[:8],
        info.workflow,
        ", ".join(filter(None, (subject, *given))),
        info.reason,
    )


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


COMMANDS: tuple[click.Command, ...] = (actions,)

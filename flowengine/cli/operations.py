"""The commands with which an operator looks at runs and removes them.

Like `commands`, this imports neither a database nor rich: help must be shown at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from flowengine import retention
from flowengine.cli.run_filters import AGE, FILTERS, FILTERS_OF_ENDED, given_filters, with_options

_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command("list")
@with_options(*FILTERS.values())
@click.option("--cursor", help="Continue behind the page that printed this cursor.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@_as_json
def list_runs(as_json: bool, **options: Any) -> None:
    """Show the newest runs.

    WORKFLOW of --workflow may be a part of a name, if no workflow has that name.
    """
    from flowengine.cli import list_command

    list_command.list_runs(as_json=as_json, **options)


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--after", type=click.IntRange(0), default=0, help="Only commits behind this one.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=1_000, show_default=True)
@_as_json
def history(run_id: str, after: int, limit: int, as_json: bool) -> None:
    """Show the commits of a run: transitions, tries, timers, answers and actions in order."""
    from flowengine.cli import history_command

    history_command.show_history(run_id, after, limit, as_json=as_json)


@click.command()
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--after", type=click.IntRange(0), default=0, help="Only behind this number.")
@click.option("--follow", "-f", is_flag=True, help="Wait for more, until the run has ended.")
@click.option("--timeout", type=click.FloatRange(0), help="Seconds without a change that end it.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object on each line.")
def events(
    run_id: str | None, after: int, follow: bool, timeout: float | None, as_json: bool
) -> None:
    """Show the changes of events in order: of a run, or of all runs.

    The numbers are places to go on behind, with --after. All runs need the setting event_feed.
    """
    from flowengine.cli import events_command

    events_command.show_events(run_id, after, timeout, follow=follow, as_json=as_json)


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--follow", "-f", is_flag=True, help="Wait for more, until the run has ended.")
@click.option("--step", "steps", multiple=True, help="Only of this step: its path or its name.")
@click.option("--try", "try_number", type=click.IntRange(1), help="Only of this try of a step.")
@click.option("--level", help="Only lines of this level and above, as WARNING.")
@click.option("--grep", metavar="PATTERN", help="Only lines that this regular expression matches.")
@click.option("--since", metavar="TIME", help="Only lines since then: 10m ago, or an ISO time.")
@click.option("-n", "last", type=click.IntRange(0), metavar="N", help="Only the last N lines.")
@click.option("--timeout", type=click.FloatRange(0), help="Seconds without a line that end it.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object on each line.")
def logs(run_id: str, **options: Any) -> None:
    """Show what the steps of a run have printed and logged, in the order of time.

    The standard output has the level INFO, the standard error WARNING.
    """
    from flowengine.cli import logs_command

    logs_command.show_logs(run_id, **options)


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file."
)
def export(run_id: str, output: Path | None) -> None:
    """Write everything that is stored of a run as one JSON document.

    Secrets are masked; other values are not. flowengine.testing.replay evaluates the document
    again.
    """
    from flowengine.cli import history_command

    history_command.export(run_id, output)


@click.command()
@click.option(
    "--older-than",
    type=AGE,
    required=True,
    metavar="AGE",
    help="Runs that ended longer ago than this: 30d, 12h, ...",
)
@click.option(
    "--state",
    multiple=True,
    type=click.Choice(retention.STATES, case_sensitive=False),
    help="Only runs in this state; several are possible.",
)
@with_options(*FILTERS_OF_ENDED.values())
@click.option("--turns", is_flag=True, help="Remove ended turns of agents, not runs.")
@click.option("--dry-run", is_flag=True, help="Count them, and remove nothing.")
@_as_json
def purge(
    older_than: int,
    turns: bool,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Remove ended runs with all their rows, in small transactions.

    The filters are those of `list`, for runs that no other has started. Child runs are removed with
    their root. Open runs are never removed. With --turns, remove turns of agents; an agent that has
    a later turn keeps its memory.
    """
    from flowengine.cli import purge_command

    filters = given_filters(options)
    if turns:
        if filters:
            raise click.UsageError("--turns takes --older-than and no other filter")
        purge_command.purge_turns(older_than, dry_run=dry_run, as_json=as_json)
        return
    purge_command.purge(older_than, filters, dry_run=dry_run, as_json=as_json)


@click.command()
@click.option("--repair", is_flag=True, help="Restore what can be restored. Look first without.")
@_as_json
def doctor(repair: bool, as_json: bool) -> None:
    """Check the invariants between the tables. The exit code is 1 if one is violated."""
    from flowengine.cli import doctor_command

    doctor_command.check(repair=repair, as_json=as_json)


COMMANDS: tuple[click.Command, ...] = (list_runs, history, events, logs, export, purge, doctor)

"""The commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

import flowengine
from flowengine.afl import checked, read_text
from flowengine.cli import check_command
from flowengine.cli.live_view import watch
from flowengine.cli.run_command import prepare
from flowengine.cli.tree import run_tree
from flowengine.cli.workflow_loader import load_modules
from flowengine.engine import Engine, Run, RunInfo
from flowengine.engine.presentation import duration
from flowengine.engine.recovery import alarm_unserved_tasks
from flowengine.errors import FlowengineError
from flowengine.evaluator.states import RunState
from flowengine.settings import Settings
from flowengine.store import Database, ensure_schema, upgrade_schema
from flowengine.store.database import system_clock

console = Console(highlight=False)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class _Commands(click.Group):
    """Errors that flowengine raises on purpose are told without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FlowengineError as problem:
            raise click.ClickException(str(problem)) from problem


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(flowengine.__version__, package_name="flowengine")
def main() -> None:
    """Durable workflows on Celery.

    The database is the SQLite file flowengine.db in this directory, or what
    FLOWENGINE_DATABASE_URL names.
    """


# --- running ---


@main.command()
@click.argument("target", metavar="TARGET")
@click.option("--workflow", help="The workflow's name, when TARGET does not say it.")
@click.option(
    "--module", "-m", "modules", multiple=True, help="Import this too: code of event facets."
)
@click.option(
    "--input", "-i", "given", multiple=True, metavar="NAME=VALUE", help="JSON, text or @file."
)
@click.option("--key", help="Start only once: a second run with this key is the first one.")
@click.option("--no-wait", is_flag=True, help="Start it and leave; `resume` goes on with it.")
@_as_json
def run(
    target: str,
    workflow: str | None,
    modules: Sequence[str],
    given: Sequence[str],
    key: str | None,
    no_wait: bool,
    as_json: bool,
) -> None:
    """Start a workflow and follow it to its end.

    TARGET is MODULE:WORKFLOW or FILE:WORKFLOW. The module is importable from here; the file
    holds Python (examples/quickstart.py:word_count), AFL text (order.afl:shop.Order) or
    program JSON. A workflow that is the only one need not be named.
    """
    # What does not fit is told before a database is made.
    prepared = prepare(target, workflow, modules, given, needs_code=not no_wait)
    from flowengine.assembly import default_engine  # brings Celery: only when something runs

    engine = default_engine()
    handle = engine.run(prepared.start(engine, key))
    if no_wait:
        click.echo(handle.id)
        return
    try:
        info = _follow(handle, as_json)
    except KeyboardInterrupt:
        raise click.ClickException(
            f"stopped. The run is kept: `flowengine resume {prepared.modules}` goes on "
            "with it, "
            f"`flowengine show {handle.id[:8]}` shows where it stands"
        ) from None
    if as_json:
        click.echo(json.dumps(asdict(info), indent=2))
    else:
        _tell_end(info)
        _tell_more(info, engine.database)
    sys.exit(0 if info.state == RunState.COMPLETED else 1)


@main.command()
@click.argument("modules", nargs=-1, required=True, metavar="MODULE...")
@_as_json
def resume(modules: Sequence[str], as_json: bool) -> None:
    """Go on with all unfinished runs, with the code of these modules, until they have ended."""
    load_modules(modules)
    from flowengine.assembly import default_engine

    engine = default_engine()
    alarm_unserved_tasks(engine)  # what was missed without these modules is missed no more
    unfinished = list(reversed(engine.list(state=RunState.RUNNING, limit=1000)))
    ended = []
    for info in unfinished:
        ended.append(_follow(engine.run(info.id), as_json, stop_at_alarm=True))
        if not as_json:
            _tell_end(ended[-1])
    if as_json:
        click.echo(json.dumps([asdict(info) for info in ended], indent=2))
    elif not ended:
        console.print("nothing is unfinished")
    sys.exit(0 if all(info.state == RunState.COMPLETED for info in ended) else 1)


def _follow(handle: Run[Any], as_json: bool, stop_at_alarm: bool = False) -> RunInfo:
    out = Console(quiet=True) if as_json else console
    return watch(handle, out, stop_at_alarm=stop_at_alarm)


def _tell_end(info: RunInfo) -> None:
    if not info.is_final:
        return  # the alarm is told already
    if info.state == RunState.COMPLETED:
        outputs = info.outputs or {}
        value = outputs["result"] if set(outputs) == {"result"} else outputs
        line = Text.assemble(("result  ", "dim"), (json.dumps(value), "bold green"))
    else:
        line = Text.assemble(("failed  ", "dim"), (info.error_text or "", "bold red"))
    console.print(line, soft_wrap=True)


def _tell_more(info: RunInfo, database: Database) -> None:
    console.print(Text.assemble(("kept in ", "dim"), database.name), soft_wrap=True)
    console.print(
        Text.assemble(
            ("try     ", "dim"),
            f"flowengine show {info.id[:8]}",
            ("   every step with its time\n", "dim"),
            ("        ", "dim"),
            "flowengine list           ",
            ("the runs so far", "dim"),
        )
    )


# --- checking ---


@main.command()
@click.argument("names", nargs=-1, required=True, metavar="MODULE_OR_FILE...")
@_as_json
def check(names: Sequence[str], as_json: bool) -> None:
    """Find what keeps workflows from running, before anything runs.

    Imports modules, files and whole packages, reads every workflow and facet in them, and
    prints all problems with file and line.
    """
    found = check_command.check(names)
    if as_json:
        problems = [
            {"file": check_command.shown_file(f.location), "line": f.location.line, "what": f.what}
            for f in found.findings
        ]
        shown = {"workflows": found.workflows, "facets": found.facets, "problems": problems}
        click.echo(json.dumps(shown, indent=2))
    else:
        check_command.show(found, console)
    sys.exit(1 if found.findings else 0)


# --- programs ---


@main.command("compile")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Write it there."
)
def compile_file(file: Path, output: Path | None) -> None:
    """Check AFL text, and print its program as JSON.

    The JSON is what AFL's own compiler makes of it, without ids.
    """
    document = read_text(file.read_bytes(), str(file))
    checked(document, str(file))
    written = json.dumps(document, indent=2)
    if output is None:
        click.echo(written)
    else:
        output.write_text(written + "\n")


# --- looking ---


@contextmanager
def _opened() -> Iterator[Engine]:
    """The database as it is: looking must neither create nor upgrade one."""
    database = Database(Settings.from_environment().database_url)
    if database.is_sqlite and not Path(database.url.database or "").exists():
        raise click.ClickException(
            f"there is no database {database.name} yet: `flowengine run` makes it, or name "
            "another in FLOWENGINE_DATABASE_URL"
        )
    ensure_schema(database, upgrade=False)
    engine = Engine(database)
    try:
        yield engine
    finally:
        engine.close()


@main.command("list")
@click.option("--workflow", help="Only runs of this workflow (qualified name).")
@click.option(
    "--state", type=click.Choice(["RUNNING", "COMPLETED", "FAILED"], case_sensitive=False)
)
@click.option("--limit", default=20, show_default=True)
@_as_json
def list_runs(workflow: str | None, state: str | None, limit: int, as_json: bool) -> None:
    """Show the newest runs."""
    with _opened() as engine:
        runs = engine.list(workflow=workflow, state=state and state.upper(), limit=limit)
    if as_json:
        click.echo(json.dumps([asdict(info) for info in runs], indent=2))
        return
    if not runs:
        console.print("no runs")
        return
    now = system_clock()
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("run", "workflow", "state", "age", "took", "waits for / error"):
        table.add_column(heading, overflow="fold")
    colours = {"COMPLETED": "green", "FAILED": "red", "RUNNING": "cyan"}
    for info in runs:
        waits = info.alarm or (f"{info.open_steps} outstanding" if info.open_steps else "")
        table.add_row(
            info.id[:8],
            info.workflow,
            Text(info.state, style=colours.get(info.state, "")),
            duration(now - info.created),
            duration((info.finished or now) - info.created),
            info.error_text or ("" if info.is_final else waits),
        )
    console.print(table)


@main.command()
@click.argument("run_id", metavar="RUN")
@_as_json
def show(run_id: str, as_json: bool) -> None:
    """Show a run as a tree of its steps. RUN is an id or the beginning of one."""
    with _opened() as engine:
        info = engine.find(run_id)
        steps = engine.steps(info.id)
    if as_json:
        shown = {**asdict(info), "steps": [asdict(step) for step in steps]}
        click.echo(json.dumps(shown, indent=2))
        return
    console.print(run_tree(info, steps, system_clock()))
    if info.outputs is not None:
        outputs = Text.assemble(("outputs ", "dim"), json.dumps(info.outputs))
        console.print(outputs, soft_wrap=True)
    for step in steps:
        if step.error and "traceback" in step.error and step.error["path"] == step.path:
            console.print(Text(f"\n{step.path}", style="bold red"))
            console.print(Text(step.error["traceback"].rstrip(), style="dim"), soft_wrap=True)


# --- the database ---


@main.group()
def db() -> None:
    """The database's schema."""


@db.command()
def upgrade() -> None:
    """Bring the schema up to date. Safe to run twice, and at the same time."""
    database = Database(Settings.from_environment().database_url)
    before, after = upgrade_schema(database)
    database.close()
    if before == after:
        click.echo(f"{database.name} is up to date ({after})")
    else:
        click.echo(f"{database.name} upgraded from {before or 'nothing'} to {after}")

"""The commands of `flowengine`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.table import Table

import flowengine
from flowengine.afl import link_files, merged, read_text
from flowengine.cli import check_command
from flowengine.cli.check_command import relative_file
from flowengine.cli.failures import Commands
from flowengine.cli.run_view import RUN_COLOURS, run_tree, watch
from flowengine.cli.targets import load_modules, prepare
from flowengine.cli.terminal import SafeConsole, console, line, lines
from flowengine.engine import Engine, Run, RunInfo
from flowengine.engine.recovery import alarm_unserved_tasks
from flowengine.engine.results import duration
from flowengine.evaluator.states import RunState
from flowengine.program import parse_program
from flowengine.settings import Settings
from flowengine.store import Database, ensure_schema, upgrade_schema
from flowengine.store.database import parsed_url, system_clock

_MAX_CELL = 500  #: characters of an error in a list
_CONNECT_SECONDS = "4"
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(flowengine.__version__, package_name="flowengine")
@click.option("--traceback", is_flag=True, help="Show where an error happened.")
def main(traceback: bool) -> None:
    """Durable workflows on Celery.

    The database is the SQLite file flowengine.db in this directory, or the one in
    FLOWENGINE_DATABASE_URL. The exit code is 0 if all went well, 1 if a command or a run failed,
    2 if a command was called wrongly.
    """


# --- running ---


@main.command()
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@click.option("--workflow", help="Name of the workflow, if TARGET does not include it.")
@click.option(
    "--module", "-m", "modules", multiple=True, help="Also import this: code of event facets."
)
@click.option(
    "--input", "-i", "given", multiple=True, metavar="NAME=VALUE", help="JSON, text or @file."
)
@click.option("--key", help="Idempotency key: a second start with it returns the first run.")
@click.option("--no-wait", is_flag=True, help="Start the run and exit; `resume` continues it.")
@_as_json
def run(
    targets: Sequence[str],
    workflow: str | None,
    modules: Sequence[str],
    given: Sequence[str],
    key: str | None,
    no_wait: bool,
    as_json: bool,
) -> None:
    """Start a workflow and show its progress until it ends.

    TARGET is MODULE:WORKFLOW or FILE:WORKFLOW. The module is importable from here; the file
    contains Python (examples/quickstart.py:word_count), AFL text (order.afl:shop.Order) or
    program JSON. WORKFLOW may be omitted if there is only one. Several files of AFL text or
    JSON are one program (shop.afl order.afl).
    """
    # Report invalid inputs before a database is created.
    prepared = prepare(targets, workflow, modules, given, needs_code=not no_wait)
    from flowengine.assembly import default_engine  # imports Celery

    engine = default_engine()
    handle = engine.run(prepared.start(engine, key))
    if no_wait:
        click.echo(handle.id)
        return
    try:
        info = _follow(handle, as_json)
    except KeyboardInterrupt:
        raise click.ClickException(
            f"stopped. The run is stored: `flowengine resume {prepared.modules}` continues it, "
            f"`flowengine show {handle.id[:8]}` shows its state"
        ) from None
    if as_json:
        click.echo(json.dumps(asdict(info), indent=2))
    else:
        _print_outcome(info)
        _print_next_commands(info, engine.database)
    sys.exit(0 if info.state == RunState.COMPLETED else 1)


@main.command()
@click.argument("modules", nargs=-1, required=True, metavar="MODULE...")
@_as_json
def resume(modules: Sequence[str], as_json: bool) -> None:
    """Continue all unfinished runs with the code of these modules until they end."""
    load_modules(modules)
    from flowengine.assembly import default_engine

    engine = default_engine()
    alarm_unserved_tasks(engine)  # clears alarms that these modules resolve
    unfinished = list(reversed(engine.list(state=RunState.RUNNING, limit=1000)))
    ended = []
    for info in unfinished:
        ended.append(_follow(engine.run(info.id), as_json, stop_at_alarm=True))
        if not as_json:
            _print_outcome(ended[-1])
    if as_json:
        click.echo(json.dumps([asdict(info) for info in ended], indent=2))
    elif not ended:
        console.print("no unfinished runs")
    sys.exit(0 if all(info.state == RunState.COMPLETED for info in ended) else 1)


def _follow(handle: Run[Any], as_json: bool, stop_at_alarm: bool = False) -> RunInfo:
    out = SafeConsole(quiet=True) if as_json else console
    return watch(handle, out, stop_at_alarm=stop_at_alarm)


def _print_outcome(info: RunInfo) -> None:
    if not info.is_final:
        return  # the alarm is already printed
    if info.state == RunState.COMPLETED:
        outputs = info.outputs or {}
        value = outputs["result"] if set(outputs) == {"result"} else outputs
        outcome = line(("result  ", "dim"), (json.dumps(value), "bold green"))
    else:
        outcome = line(("failed  ", "dim"), (info.error_text or "", "bold red"))
    console.print(outcome, soft_wrap=True)


def _print_next_commands(info: RunInfo, database: Database) -> None:
    console.print(line(("stored in ", "dim"), database.name), soft_wrap=True)
    show = (f"flowengine show {info.id[:8]}", ("   every step with its time", "dim"))
    newest = ("flowengine list           ", ("the newest runs", "dim"))
    console.print(line(("see     ", "dim"), *show))
    console.print(line("        ", *newest))


# --- checking ---


@main.command()
@click.argument("names", nargs=-1, required=True, metavar="MODULE_OR_FILE...")
@_as_json
def check(names: Sequence[str], as_json: bool) -> None:
    """Find the problems of workflows without running anything.

    Imports modules, files and packages, traces their workflows and facets, and prints all
    problems with file and line. Warnings do not change the exit code.
    """
    report = check_command.check(names)
    if as_json:
        listed: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
        for f in report.findings:
            place = {"file": relative_file(f.location), "line": f.location.line}
            listed[f.is_warning].append({**place, "what": f.what})
        shown = {
            "workflows": report.workflows,
            "facets": report.facets,
            "problems": listed[False],
            "warnings": listed[True],
        }
        click.echo(json.dumps(shown, indent=2))
    else:
        check_command.show(report, console)
    sys.exit(1 if report.problems else 0)


# --- programs ---


@main.command("compile")
@click.argument(
    "files",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE...",
)
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file."
)
def compile_files(files: Sequence[Path], output: Path | None) -> None:
    """Compile AFL text and print the program as JSON; several files are one program.

    The JSON equals that of AFL's own compiler, without ids.
    """
    documents = [read_text(file.read_bytes(), str(file)) for file in files]
    parts = [(parse_program(d), str(f)) for d, f in zip(documents, files, strict=True)]
    link_files(parts, allow_scripts=Settings.from_environment().scripts)
    written = json.dumps(merged(documents), indent=2)
    if output is None:
        click.echo(written)
    else:
        output.write_text(written + "\n")


# --- inspecting ---


def _database(settings: Settings) -> Database:
    """Open the database of the settings. A server that does not answer is an error soon."""
    url = settings.database_url
    parsed = parsed_url(url)
    if parsed.get_backend_name() == "postgresql" and "connect_timeout" not in parsed.query:
        parsed = parsed.update_query_dict({"connect_timeout": _CONNECT_SECONDS})
        url = parsed.render_as_string(hide_password=False)
    return Database(url, schema=settings.schema)


@contextmanager
def _open_engine() -> Iterator[Engine]:
    """Open the existing database; neither create nor upgrade it."""
    settings = Settings.from_environment()
    database = _database(settings)
    if database.file is not None and not database.file.exists():
        raise click.ClickException(
            f"there is no database {database.name} yet: `flowengine run` creates it, or set "
            "another in FLOWENGINE_DATABASE_URL"
        )
    ensure_schema(database, upgrade=False)
    engine = Engine(database, settings=settings)
    try:
        yield engine
    finally:
        engine.close()


@main.command("list")
@click.option("--workflow", help="Only runs of this workflow (qualified name).")
@click.option(
    "--state", type=click.Choice(["RUNNING", "COMPLETED", "FAILED"], case_sensitive=False)
)
@click.option("--tenant", help='Only runs of this tenant; "": of none.')
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@_as_json
def list_runs(
    workflow: str | None, state: str | None, tenant: str | None, limit: int, as_json: bool
) -> None:
    """Show the newest runs."""
    state = state and state.upper()
    with _open_engine() as engine:
        runs = engine.list(workflow=workflow, state=state, tenant=tenant, limit=limit)
    if as_json:
        click.echo(json.dumps([asdict(info) for info in runs], indent=2))
        return
    if not runs:
        console.print("no runs")
        return
    now = system_clock()
    table = Table(box=None, pad_edge=False, header_style="dim")
    has_tenants = any(info.tenant for info in runs)
    headings = ("run", *(("tenant",) if has_tenants else ()), "workflow", "state", "age", "took")
    for heading in (*headings, "waits for / error"):
        table.add_column(heading, overflow="fold")
    for info in runs:
        steps = "step" if info.open_steps == 1 else "steps"
        waits = info.alarm or (f"{info.open_steps} {steps} outstanding" if info.open_steps else "")
        table.add_row(
            info.id[:8],
            *([line(info.tenant)] if has_tenants else []),
            line(info.workflow),
            line((info.state, RUN_COLOURS.get(info.state, ""))),
            duration(now - info.created),
            duration((info.finished or now) - info.created),
            line(info.error_text or ("" if info.is_final else waits), limit=_MAX_CELL),
        )
    console.print(table)


@main.command()
@click.argument("run_id", metavar="RUN")
@_as_json
def show(run_id: str, as_json: bool) -> None:
    """Show the steps of a run as a tree. RUN is an id or a prefix of one."""
    with _open_engine() as engine:
        info = engine.find(run_id)
        steps = engine.steps(info.id)
    if as_json:
        shown = {**asdict(info), "steps": [asdict(step) for step in steps]}
        click.echo(json.dumps(shown, indent=2))
        return
    console.print(run_tree(info, steps, system_clock(), console.width))
    if info.outputs is not None:
        outputs = line(("outputs ", "dim"), json.dumps(info.outputs))
        console.print(outputs, soft_wrap=True)
    for step in steps:
        if step.error and "traceback" in step.error and step.error["path"] == step.path:
            console.print()
            console.print(line((step.path, "bold red")))
            console.print(lines(step.error["traceback"].rstrip(), "dim", indent=2), soft_wrap=True)


# --- the database ---


@main.group()
def db() -> None:
    """Manage the database schema."""


@db.command()
def upgrade() -> None:
    """Upgrade the schema. Idempotent, and safe to run concurrently."""
    database = _database(Settings.from_environment())
    before, after = upgrade_schema(database)
    database.close()
    if before == after:
        click.echo(f"{database.name} is up to date ({after})")
    else:
        click.echo(f"{database.name} upgraded from {before or 'nothing'} to {after}")

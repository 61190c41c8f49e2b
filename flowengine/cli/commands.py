"""The commands of `flowengine`.

Their help must be shown at once, so this module imports neither a database, Celery nor rich: each
command imports what it needs.
"""

from __future__ import annotations

import atexit
import gc
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import flowengine
from flowengine.cli import (
    action_commands,
    agent_commands,
    api_command,
    breaker_commands,
    configuration,
    control_command,
    diff_command,
    key_commands,
    limit_commands,
    operations,
    project_commands,
    retry_command,
    runner_command,
    schedule_commands,
    token_command,
    worker_commands,
    workflow_commands,
)
from flowengine.cli.failures import Commands
from flowengine.cli.streams import json_of

_GC_THRESHOLD = 50_000  #: objects until the next garbage collection
_MAX_TRACEBACKS = 5  #: that `show` prints
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(flowengine.__version__, package_name="flowengine")
@click.option(
    "--app",
    "-A",
    envvar="FLOWENGINE_APP",
    metavar="APP",
    help="Use the settings of this Celery app, as `celery -A` names it.",
)
@click.option("--traceback", is_flag=True, help="Show where an error happened.")
@click.pass_context
def main(context: click.Context, app: str | None, traceback: bool) -> None:
    """Durable workflows on Celery.

    The database is the one of FLOWENGINE_DATABASE_URL, else of the Celery app that -A names, else
    the SQLite file flowengine.db in this directory. The exit code is 0 if all went well, 1 if a
    command or a run failed, 2 if a command was called wrongly.
    """
    configuration.name_app(context, app)
    # Imports create half a million objects, none of which is garbage. The collector would scan them
    # again and again, and once more at the exit: a third of the time of a short command.
    thresholds = gc.get_threshold()
    gc.set_threshold(_GC_THRESHOLD)
    context.call_on_close(lambda: gc.set_threshold(*thresholds))
    atexit.register(gc.freeze)


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
@click.option(
    "--if-failed",
    type=click.Choice(["return", "start", "raise"]),
    default="return",
    show_default=True,
    help="If the run of the key has failed: show it, start a new run, or end with an error.",
)
@click.option("--no-wait", is_flag=True, help="Start the run and exit; `resume` continues it.")
@_as_json
def run(
    targets: Sequence[str],
    workflow: str | None,
    modules: Sequence[str],
    given: Sequence[str],
    key: str | None,
    if_failed: str,
    no_wait: bool,
    as_json: bool,
) -> None:
    """Start a workflow and show its progress until it ends.

    TARGET is MODULE:WORKFLOW or FILE:WORKFLOW. The module is importable from here; the file
    contains Python (examples/quickstart.py:word_count), AFL text (order.afl:shop.Order) or
    program JSON. WORKFLOW may be omitted if there is only one. Several files of AFL text or
    JSON are one program (shop.afl order.afl).
    """
    from flowengine.cli import run_command

    start = {"key": key, "if_failed": if_failed}
    run_command.run(targets, workflow, modules, given, start, no_wait=no_wait, as_json=as_json)


@main.command()
@click.argument("name", metavar="WORKFLOW")
@click.option(
    "--workflows", metavar="FOLDER", help="Folder of documents, if not FLOWENGINE_WORKFLOWS."
)
@click.option(
    "--module", "-m", "modules", multiple=True, help="Also import this: facets and workflows."
)
@click.option(
    "--input", "-i", "given", multiple=True, metavar="NAME=VALUE", help="JSON, text or @file."
)
@click.option("--key", help="Idempotency key: a second start with it returns the first run.")
def start(
    name: str,
    workflows: str | None,
    modules: Sequence[str],
    given: Sequence[str],
    key: str | None,
) -> None:
    """Start a workflow by its name, print the id of its run, and exit.

    WORKFLOW is the name of a document, etl.daily for etl/daily.yml in the folder of
    FLOWENGINE_WORKFLOWS, of a workflow in an imported module, or else of one in the catalogue
    (see `flowengine workflows`). Workers execute the run.
    """
    from flowengine.cli import run_command

    run_command.start(name, workflows, modules, given, {"key": key})


@main.command()
@click.argument("modules", nargs=-1, required=True, metavar="MODULE...")
@_as_json
def resume(modules: Sequence[str], as_json: bool) -> None:
    """Continue all unfinished runs with the code of these modules until they end."""
    from flowengine.cli import run_command

    run_command.resume(modules, as_json=as_json)


@main.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--module", "-m", "modules", multiple=True, help="Import this: code of event facets.")
@click.option("--http", metavar="[HOST:]PORT", help="Serve HTTP, not standard input and output.")
@click.option(
    "--wait",
    type=click.FloatRange(0, 3600),
    default=30.0,
    show_default=True,
    help="Seconds that a call waits for its run.",
)
def mcp(files: Sequence[str], modules: Sequence[str], http: str | None, wait: float) -> None:
    """Offer workflows and event facets as tools of a Model Context Protocol server.

    FILE is AFL text or program JSON; several are one program. Each call of a tool is a durable run.
    With -A the workers of the app execute it, otherwise this process, with the code of the modules.
    HTTP is served on 127.0.0.1; another host needs FLOWENGINE_MCP_TOKEN.
    """
    from flowengine.cli import mcp_command

    mcp_command.serve(files, modules, http, wait)


# --- checking ---


@main.command()
@click.argument("names", nargs=-1, metavar="[MODULE_OR_PATH...]")
@click.option("--replay", is_flag=True, help="Replay stored durable functions with this code too.")
@click.option(
    "--recent",
    type=click.IntRange(0, 10_000),
    default=100,
    show_default=True,
    metavar="N",
    help="With --replay: how many functions of ended runs, the newest first.",
)
@click.option("--strict", is_flag=True, help="Take warnings for problems.")
@_as_json
def check(names: Sequence[str], as_json: bool, replay: bool, recent: int, strict: bool) -> None:
    """Find the problems of workflows without running anything.

    Imports modules, files and packages, traces their workflows and facets, and prints all
    problems with file and line. Reads documents (.yml, .yaml) and folders of them, and prints
    their problems as file:line:column. Warnings change the exit code only with --strict. Without
    arguments: the modules and the folder of the settings `imports` and `workflows`.

    With --replay the durable functions of open runs, and of those that ended last, are replayed
    from their records with this code: no call is made, nothing is written. Code that does not fit
    a record is a problem.
    """
    from flowengine.cli import check_command, replay_check
    from flowengine.cli.terminal import console

    configuration.celery_app()  # modules of a Django project need its settings
    report = check_command.check(names or check_command.of_settings())
    replayed = replay_check.replayed(recent) if replay else []
    if as_json:
        listed: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
        for f in report.findings:
            place = {"file": check_command.relative_file(f.location), "line": f.location.line}
            listed[f.is_warning].append({**place, "what": f.what})
        for is_warning, told in ((False, report.documents), (True, report.document_warnings)):
            listed[is_warning] += [asdict(each) for each in told]
        shown = {
            "workflows": report.workflows,
            "facets": report.facets,
            "problems": listed[False],
            "warnings": listed[True],
        }
        if replay:
            shown["replayed"] = [asdict(one) for one in replayed]
        click.echo(json.dumps(shown, indent=2))
    else:
        check_command.show(report, console)
        if replay:
            replay_check.show(replayed, console)
    is_broken = report.problems or report.documents or any(one.problem for one in replayed)
    if strict:
        is_broken = is_broken or report.findings or report.document_warnings
    sys.exit(1 if is_broken else 0)


@main.command()
def schema() -> None:
    """Print the JSON Schema of documents, for editors."""
    from flowengine.documents import document_schema

    click.echo(json.dumps(document_schema(), indent=2))


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
    from flowengine.afl import link_files, merged, read_text
    from flowengine.program import parse_program

    documents = [read_text(file.read_bytes(), str(file)) for file in files]
    parts = [(parse_program(d), str(f)) for d, f in zip(documents, files, strict=True)]
    link_files(parts, allow_scripts=configuration.settings().scripts)
    written = json.dumps(merged(documents), indent=2)
    if output is None:
        click.echo(written)
    else:
        output.write_text(written + "\n")


# --- inspecting ---


@main.command()
@click.argument("run_id", metavar="RUN")
@_as_json
def show(run_id: str, as_json: bool) -> None:
    """Show the steps of a run as a tree. RUN is an id or a prefix of one."""
    from flowengine.cli.database import open_engine
    from flowengine.cli.run_view import run_tree
    from flowengine.cli.terminal import console, line, lines
    from flowengine.shown_paths import shown_path
    from flowengine.store.database import system_clock

    with open_engine() as engine:
        info = engine.find(run_id)
        steps = engine.steps(info.id)
    if as_json:
        listed = [{**asdict(step), "status": step.status} for step in steps]
        shown = {**asdict(info), "status": info.status, "steps": listed}
        click.echo(json_of(shown))
        return
    console.print(run_tree(info, steps, system_clock(), console.width))
    if info.outputs is not None:
        outputs = line(("outputs ", "dim"), json_of(info.outputs, indent=None))
        console.print(outputs, soft_wrap=True)
    failed = [
        (step.path, step.error["traceback"].rstrip())
        for step in steps
        if step.error and "traceback" in step.error and step.error["path"] == step.path
    ]
    for path, traceback in failed[:_MAX_TRACEBACKS]:
        console.print()
        console.print(line((shown_path(path), "bold red")))
        console.print(lines(traceback, "dim", indent=2), soft_wrap=True)
    if (more := len(failed) - _MAX_TRACEBACKS) > 0:
        command = f"flowengine show {info.id[:8]} --json"
        console.print()
        console.print(line((f"… {more:,} more steps with a traceback: {command}", "dim")))


@main.command()
def top() -> None:
    """Show workflows, workers, recent runs and the log of one, live; needs the extra `tui`.

    Keys: arrows and Tab move, Enter on a workflow shows its runs, / filters, Escape shows all
    again, q quits.
    """
    from flowengine.cli import top_command

    top_command.top()


# --- control ---


@main.command()
@click.argument("run_id", metavar="RUN")
@click.argument("name")
@click.argument("value", required=False)
@click.option("--actor", help="The actor. By default the user of this computer.")
def send(run_id: str, name: str, value: str | None, actor: str | None) -> None:
    """Answer the step of RUN that waits for NAME, or will.

    VALUE is JSON, @file or - for the standard input; without it the answer is null.
    """
    from flowengine.cli import send_command

    send_command.send(run_id, name, value, actor)


for _command in (
    *control_command.commands(),
    *retry_command.commands(),
    diff_command.diff,
    runner_command.runner,
    api_command.api,
    token_command.token,
):
    main.add_command(_command)


# --- the database ---


@main.group()
def db() -> None:
    """Manage the database schema."""


@db.command()
@_as_json
def current(as_json: bool) -> None:
    """Print the revisions of the schema and of this code; exit code 1 if they do not fit.

    A newer schema that has only more than this code knows fits.
    """
    from flowengine.cli import database

    database.current(as_json=as_json)


@db.command()
@click.option("--sql", is_flag=True, help="Print the statements, and change nothing.")
@click.option(
    "--from",
    "before",
    metavar="REVISION",
    help="With --sql: the revision of the database, or none; without it the database is asked.",
)
def upgrade(sql: bool, before: str | None) -> None:
    """Upgrade the schema. Idempotent, and safe to run concurrently."""
    from flowengine.cli import database

    if before is not None and not sql:
        raise click.UsageError("--from belongs to --sql")
    if sql:
        database.print_upgrade(before)
    else:
        database.upgrade()


for command in (
    *operations.COMMANDS,
    *action_commands.COMMANDS,
    *project_commands.COMMANDS,
    *agent_commands.COMMANDS,
    *schedule_commands.COMMANDS,
    *workflow_commands.COMMANDS,
    *worker_commands.COMMANDS,
    *limit_commands.COMMANDS,
    *key_commands.COMMANDS,
    *breaker_commands.COMMANDS,
):
    main.add_command(command)

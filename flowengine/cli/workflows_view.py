"""`flowengine workflows` and `flowengine push`: lists, one workflow, and publications."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.text import Text

from flowengine.cli import configuration
from flowengine.cli.database import acting_engine, open_engine, starting_engine
from flowengine.cli.document_targets import readable_folder
from flowengine.cli.streams import json_of
from flowengine.cli.targets import load_modules, setting_modules
from flowengine.cli.terminal import console, line, print_table, table_of
from flowengine.engine.catalogue import WorkflowInfo
from flowengine.engine.presentation import clock
from flowengine.engine.publication_drafts import PUSHED
from flowengine.errors.documents import DocumentProblem
from flowengine.printable import printable

_MAX_CELL = 100  #: characters of a description in a list


def show_list(*, as_json: bool) -> None:
    with open_engine() as engine:
        found = engine.catalogue.list()
        closed = {each.workflow: each for each in engine.catalogue.closed()}
        now = engine.database.now()
    if as_json:
        shown = [
            {**asdict(each), "closed": (by := closed.get(each.name)) and by._asdict()}
            for each in found
        ]
        click.echo(json_of(shown))
        return
    if not found and not closed:
        what = "no workflows: a worker publishes those of its code and documents when it starts"
        console.print(line(what))
        return
    rows = (_row(each, is_closed=each.name in closed) for each in found)
    if found:
        print_table(table_of(("name", "source", "state", "description"), rows))
    for one in closed.values():
        why = f": {one.reason}" if one.reason else ""
        text = f"{one.workflow} is closed since {clock(now)(one.closed)} by {one.actor}{why}"
        console.print(line((text, "yellow")), soft_wrap=True)
    for each in found:
        _print_problems(each.problems)


def _row(each: WorkflowInfo, *, is_closed: bool) -> tuple[Text, ...]:
    return (
        line(each.name),
        line(each.source),
        line(("closed", "yellow") if is_closed else _state(each)),
        line(each.description.partition("\n")[0], limit=_MAX_CELL),
    )


def _state(info: WorkflowInfo) -> tuple[str, str]:
    if not info.problems:
        return "ready", "green"
    return ("ready, newest broken", "yellow") if info.can_start else ("broken", "red")


def _print_problems(problems: Sequence[DocumentProblem]) -> None:
    for problem in problems:
        where = line((problem.place, "bold"), ": ", printable(problem.what))
        console.print(where, soft_wrap=True)


def show(name: str, *, as_json: bool) -> None:
    with open_engine() as engine:
        found = engine.catalogue.get(name)
    if as_json:
        click.echo(json_of(asdict(found)))
        return
    console.print(line((found.name, "bold"), "  ", _state(found)))
    for label, value in (("source", found.source), ("place", found.place)):
        console.print(line((f"{label:12}", "dim"), value), soft_wrap=True)
    if found.description:
        console.print(line(("description ", "dim"), found.description), soft_wrap=True)
    required = found.inputs.get("required", [])
    for field, schema in found.inputs.get("properties", {}).items():
        need = "" if field in required else "  optional"
        kind = json_of(schema, indent=None)
        console.print(line(("input       ", "dim"), f"{field}  {kind}{need}"), soft_wrap=True)
    _print_problems(found.problems)


def remove(name: str) -> None:
    with acting_engine() as engine:
        engine.catalogue.remove(name)
    click.echo(f"workflow {name} is removed")


def push(folder: str, modules: Sequence[str], *, skip_broken: bool) -> None:
    from flowengine.worker.document_folder import load_folder  # loads PyYAML
    from flowengine.worker.published_documents import publish_documents

    load_modules((*setting_modules(configuration.settings()), *modules))
    with readable_folder(folder):
        documents = load_folder(Path(folder))
    problems = documents.all_problems()
    _print_problems(problems)
    if problems and not skip_broken:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        what = "nothing is published: correct them, or publish the others with --skip-broken"
        raise click.ClickException(f"{count}; {what}")
    if not documents.compiled:
        raise click.ClickException(f"there is no document in {folder}")
    documents.problems.clear()  # of files that were not pushed
    with starting_engine(configuration.settings()) as engine:
        changes = publish_documents(engine, documents, PUSHED)
    refused = changes.refused
    _print_problems(list(refused.values()))
    written = [name for name in changes.written if name not in refused]
    for name in written:
        click.echo(f"published {name}")
    unchanged = len(documents.compiled) - len({*written, *refused})
    if unchanged:
        click.echo(f"{unchanged} unchanged")
    sys.exit(1 if problems or refused else 0)


def close(name: str, actor: str, reason: str) -> None:
    with open_engine() as engine:
        closed = engine.catalogue.close(name, actor=actor, reason=reason)
    console.print(line(f"{closed.workflow} is closed for new starts; open runs go on"))


def open_again(name: str, actor: str, reason: str) -> None:
    with open_engine() as engine:
        workflow = engine.catalogue.open(name, actor=actor, reason=reason)
    console.print(line(f"{workflow} takes new starts again"))

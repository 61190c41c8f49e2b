"""`flowengine work` and `flowengine init`: serve a folder of documents, and make one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from flowengine.settings import MAX_HELD

_HELD = click.IntRange(1, MAX_HELD)


@click.command()
@click.argument("folder", required=False, metavar="[FOLDER]")
@click.option(
    "--module", "-m", "modules", multiple=True, help="Also import this: facets and workflows."
)
@click.option("--name", default="", help="Of the worker; by default work@ and the machine.")
@click.option("--concurrency", type=click.IntRange(1), help="Threads that run steps.")
@click.option("--tasks", "max_tasks", type=_HELD, help="Tries that it holds, at most.")
@click.option(
    *("--workflows", "max_workflows"),
    type=_HELD,
    help="Runs that it holds tries of, at most.",
)
@click.option("--commands", is_flag=True, help="Let documents run commands of this machine.")
def work(
    folder: str | None, modules: Sequence[str], name: str, commands: bool, **limits: int | None
) -> None:
    """Serve a folder of documents until a signal: run steps, recover, start by the clock.

    FOLDER is by default that of FLOWENGINE_WORKFLOWS. It needs no broker and no other process;
    several may work on one database. SIGTERM or Ctrl-C: it finishes what it runs and ends.
    """
    from flowengine.cli import work_command

    given: dict[str, Any] = {key: value for key, value in limits.items() if value is not None}
    work_command.work(folder, modules, name, given | ({"commands": True} if commands else {}))


@click.command()
@click.argument("folder", default=".", metavar="[FOLDER]")
def init(folder: str) -> None:
    """Make a small project in FOLDER: a workflow, a facet and settings. Overwrites nothing."""
    from flowengine.cli import init_command

    init_command.init(folder)


COMMANDS = (work, init)

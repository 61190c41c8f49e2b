"""`celery -A proj flow …`: the commands of flowengine among those of Celery.

Celery loads this module for each of its commands, so it imports neither a database nor rich.
"""

from __future__ import annotations

import click

from flowengine.cli import configuration
from flowengine.cli.commands import main
from flowengine.cli.failures import Commands


@click.group(
    "flow",
    cls=Commands,
    commands=main.commands,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--traceback", is_flag=True, help="Show where an error happened.")
@click.pass_context
def flow(context: click.Context, traceback: bool) -> None:
    """Runs of flowengine: list, show, run, db upgrade.

    The commands are those of `flowengine`, with the settings of the app that -A names.
    """
    if context.find_root().params.get("app"):
        configuration.give_app(context, context.obj.app)

"""`celery flower` in an installation without Flower: the extra to install.

Celery adds the command of each entry point. If Flower is installed, this is its own command.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

import click

from flowengine.errors import MissingExtra


@click.command(
    "flower",
    hidden=True,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def missing_flower(arguments: tuple[str, ...]) -> None:
    """Flower is not installed."""
    raise click.ClickException(str(MissingExtra("celery flower", "flower", "flower")))


def _command() -> Any:
    if find_spec("flower") is None:
        return missing_flower
    (own,) = entry_points(group="celery.commands", name="flower")
    return own.load()


flower = _command()

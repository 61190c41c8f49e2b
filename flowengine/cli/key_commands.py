"""`flowengine keys`: which keys have encrypted the stored values, and their replacement.

Like `commands`, this imports neither a database nor rich: help must be shown at once.
"""

from __future__ import annotations

import click

from flowengine.cli.control_command import JSON

_ROWS = 100_000


@click.group(invoke_without_command=True)
@click.pass_context
def keys(context: click.Context) -> None:
    """Count the keys of stored values, and replace them."""
    if context.invoked_subcommand is None:
        context.invoke(list_keys)


@keys.command("list")
@click.option(
    "--rows",
    type=click.IntRange(0),
    default=_ROWS,
    show_default=True,
    help="Look at that many rows of each table; 0: at all.",
)
@JSON
def list_keys(rows: int = _ROWS, as_json: bool = False) -> None:
    """Count the stored values of each key, by table."""
    from flowengine.cli import keys_view

    keys_view.show_keys(rows or None, as_json=as_json)


@keys.command()
@click.option(
    "--batch",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="Rows of one transaction.",
)
@click.option("--dry-run", is_flag=True, help="Count the values, and change nothing.")
@JSON
def reencrypt(batch: int, dry_run: bool, as_json: bool) -> None:
    """Encrypt values of other keys anew, while the fleet works.

    It may be ended at any time and begun again. Exit code 1: values of other keys are left.
    """
    from flowengine.cli import keys_view

    keys_view.reencrypt(batch, dry_run=dry_run, as_json=as_json)


COMMANDS: tuple[click.Command, ...] = (keys,)

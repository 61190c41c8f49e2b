"""`flowengine limits` and `flowengine rates`: who holds a key, how many wait, and overrides.

Like `commands`, this imports neither a database nor rich: help must be shown at once.
"""

from __future__ import annotations

from typing import Any

import click

from flowengine.cli.control_command import ACTOR, JSON, REASON, named_actor

_KEY = click.argument("key")
_ABOUT = {
    "limits": "Show the limits: how many tasks they admit, hold and keep waiting; override them.",
    "rates": "Show the rates: how many tasks they admit, have admitted and keep waiting; "
    "override them.",
}


def _group(name: str) -> click.Group:
    """Return the commands of limits, or of rates."""
    kind = name.removesuffix("s")

    @click.group(name, invoke_without_command=True, help=_ABOUT[name])
    @click.pass_context
    def group(context: click.Context) -> None:
        if context.invoked_subcommand is None:
            context.invoke(list_keys)

    @group.command("list", help=f"Show the {name} by key.")
    @click.option("--waiting", is_flag=True, help="Only those for which tasks wait.")
    @click.option("--overridden", is_flag=True, help="Only those that somebody has set.")
    @click.option("--cursor", help="Continue behind the page that printed this cursor.")
    @click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
    @JSON
    def list_keys(as_json: bool = False, **options: Any) -> None:
        from flowengine.cli import limits_view

        limits_view.show_list(name, options, as_json=as_json)

    @group.command(help=f"Show one {kind} with the tasks that hold it: run, step and server.")
    @_KEY
    @JSON
    def show(key: str, as_json: bool) -> None:
        from flowengine.cli import limits_view

        limits_view.show(name, key, as_json=as_json)

    @group.command("set", help=_SET_HELP.format(kind=kind))
    @_KEY
    @click.argument("number", type=click.IntRange(0))
    @REASON
    @ACTOR
    @JSON
    def set_key(
        key: str,
        number: int,
        reason: str,
        actor: str | None,
        as_json: bool,
        per: float | None = None,
    ) -> None:
        from flowengine.cli import limits_view

        given: dict[str, Any] = {} if per is None else {"per": per}
        about = {"reason": reason, "actor": named_actor(actor)}
        limits_view.set_number(name, key, number, {**given, **about}, as_json=as_json)

    if name == "rates":
        click.option("--per", type=click.FloatRange(0, min_open=True), help="Seconds.")(set_key)

    @group.command(help=f"Let the number of the code count again for a {kind}.")
    @_KEY
    @REASON
    @ACTOR
    @JSON
    def reset(key: str, reason: str, actor: str | None, as_json: bool) -> None:
        from flowengine.cli import limits_view

        about = {"reason": reason, "actor": named_actor(actor)}
        limits_view.reset(name, key, about, as_json=as_json)

    return group


_SET_HELP = """Set the number of a {kind} in place of that of the code, until `reset`.

It is kept when workers are started again. 0 admits nothing. Tasks that are admitted stay so."""

COMMANDS: tuple[click.Command, ...] = (_group("limits"), _group("rates"))

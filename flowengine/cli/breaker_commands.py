"""`flowengine breakers`: the states of circuit breakers, overrides and resets.

Like `commands`, this imports neither a database nor rich: help must be shown at once.
"""

from __future__ import annotations

import click

from flowengine.cli.control_command import ACTOR, JSON, REASON, named_actor

_NAME = click.argument("name", metavar="BREAKER")


@click.group(invoke_without_command=True)
@click.pass_context
def breakers(context: click.Context) -> None:
    """Show the circuit breakers, and override them while workers run."""
    if context.invoked_subcommand is None:
        context.invoke(list_breakers)


@breakers.command("list")
@JSON
def list_breakers(as_json: bool = False) -> None:
    """Show the breakers that have counted a failure, parked tasks, or are set by somebody.

    Their states are known if they are shared through Redis; without it each process has its own.
    """
    from flowengine.cli import breakers_view

    breakers_view.show_list(as_json=as_json)


@breakers.command("open")
@_NAME
@REASON
@ACTOR
def hold_open(name: str, reason: str, actor: str | None) -> None:
    """Permit no call through a breaker until `reset`: its tasks are parked."""
    from flowengine.cli import breakers_view

    breakers_view.hold_open(name, named_actor(actor), reason)


@breakers.command("set")
@_NAME
@click.option("--failures", type=click.IntRange(1), help="In a row, that open it.")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), help="Seconds until probes.")
@REASON
@ACTOR
def set_values(
    name: str, failures: int | None, timeout: float | None, reason: str, actor: str | None
) -> None:
    """Set values of a breaker in place of those of the code, until `reset`."""
    from flowengine.cli import breakers_view

    if failures is None and timeout is None:
        raise click.UsageError("say what to set: --failures, --timeout or both")
    breakers_view.set_values(name, failures, timeout, named_actor(actor), reason)


@breakers.command()
@_NAME
@REASON
@ACTOR
def reset(name: str, reason: str, actor: str | None) -> None:
    """Let the values of the code count again, and close a breaker that is shared."""
    from flowengine.cli import breakers_view

    breakers_view.reset(name, named_actor(actor), reason)


COMMANDS: tuple[click.Command, ...] = (breakers,)

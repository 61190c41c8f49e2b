"""`flowengine agents`, `turns` and `turn`: agents, their turns, and decisions about them.

Like `commands`, this imports neither a database nor rich: help must be shown at once.
"""

from __future__ import annotations

import json
from typing import Any

import click

from flowengine.cli.control_command import ACTOR, JSON, named_actor

_HEAD_STATES = ("idle", "dispatched", "running", "suspended")
_TURN_STATES = (
    *("queued", "active", "finished"),
    *("success", "failed", "canceled", "timeout", "partial"),
)
_PROJECT = click.option("--project", help='Only this project, the tenant of its runs; "": none.')
_LIMIT = click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
_CURSOR = click.option("--cursor", help="Continue behind the page that printed this cursor.")
_REASON = click.option("--reason", default="", help="Recorded with it.")
_TURN = click.argument("turn_id", metavar="TURN")
_CALL = click.argument("call_id", metavar="CALL")


@click.command()
@click.option("--state", type=click.Choice(_HEAD_STATES), help="Only agents in this state.")
@_PROJECT
@_CURSOR
@_LIMIT
@JSON
def agents(as_json: bool, **options: Any) -> None:
    """Show the agents: their state, their turn, and what they wait for."""
    from flowengine.cli import agents_view

    agents_view.show_agents(as_json=as_json, **options)


@click.command()
@click.option("--agent", help="Only turns of this agent.")
@click.option(
    "--state", type=click.Choice(_TURN_STATES), help="Only turns in this state, or with this end."
)
@_PROJECT
@_CURSOR
@_LIMIT
@JSON
def turns(as_json: bool, **options: Any) -> None:
    """Show the newest turns of agents."""
    from flowengine.cli import agents_view

    agents_view.show_turns(as_json=as_json, **options)


@click.group()
def turn() -> None:
    """Show one turn of an agent, and decide about it.

    TURN is an id, a prefix of one, or an agent: its present turn, or else its newest.
    """


@turn.command()
@_TURN
@_PROJECT
@JSON
def show(turn_id: str, project: str | None, as_json: bool) -> None:
    """Show a turn: steps, calls with their runs, cards, tokens, and the deliverable."""
    from flowengine.cli import turn_view

    turn_view.show_turn(turn_id, project, as_json=as_json)


@turn.command()
@_TURN
@_REASON
@_PROJECT
@ACTOR
def stop(turn_id: str, reason: str, project: str | None, actor: str | None) -> None:
    """End a turn: it delivers as canceled, and its open calls are told to end."""
    from flowengine.cli import turn_actions

    turn_actions.stop(turn_id, project, reason, named_actor(actor))


@turn.command()
@_TURN
@_REASON
@_PROJECT
@ACTOR
def cancel(turn_id: str, reason: str, project: str | None, actor: str | None) -> None:
    """Keep a turn that waits in its agent's queue from running."""
    from flowengine.cli import turn_actions

    turn_actions.cancel(turn_id, project, reason, named_actor(actor))


def _arguments(_: click.Context, __: click.Parameter, text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise click.BadParameter(f"this is no JSON: {problem}") from None
    if not isinstance(found, dict):
        raise click.BadParameter("write a JSON object: the arguments by name")
    return found


@turn.command()
@_TURN
@_CALL
@click.option(
    "--arguments", metavar="JSON", callback=_arguments, help="Call the tool with these instead."
)
@_PROJECT
@ACTOR
def approve(
    turn_id: str, call_id: str, arguments: Any, project: str | None, actor: str | None
) -> None:
    """Let a call begin that waits for a person. CALL is its id, a prefix of it, or the tool."""
    from flowengine.cli import turn_actions

    turn_actions.approve(turn_id, call_id, project, arguments, named_actor(actor))


@turn.command()
@_TURN
@_CALL
@_REASON
@_PROJECT
@ACTOR
def reject(turn_id: str, call_id: str, reason: str, project: str | None, actor: str | None) -> None:
    """Refuse a call that waits for a person; the model reads the reason."""
    from flowengine.cli import turn_actions

    turn_actions.reject(turn_id, call_id, project, reason, named_actor(actor))


COMMANDS: tuple[click.Command, ...] = (agents, turns, turn)

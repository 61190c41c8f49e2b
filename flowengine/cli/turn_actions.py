"""`flowengine turn stop`, `cancel`, `approve` and `reject`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from flowengine.agents import Agents, agents_of
from flowengine.agents.views import SHOWN_DIGITS, find_turn
from flowengine.cli.database import acting_engine
from flowengine.cli.terminal import console, line
from flowengine.store.agent_turns import TurnInfo
from flowengine.tenants import visible_tenant
from flowengine.turns.states import TurnState


@contextmanager
def _found(beginning: str, project: str | None) -> Iterator[tuple[Agents, TurnInfo]]:
    with acting_engine() as engine:
        seen = visible_tenant(engine.settings.tenant, project)
        with engine.database.read() as session:
            turn = find_turn(session, beginning, seen)
        yield agents_of(engine), turn


def stop(beginning: str, project: str | None, reason: str, actor: str) -> None:
    with _found(beginning, project) as (agents, turn):
        agents.stop(turn.project, turn.id, reason, by=actor)
        _tell_state(agents.turn(turn.project, turn.id))


def cancel(beginning: str, project: str | None, reason: str, actor: str) -> None:
    """Keep a turn from running. One that begins meanwhile is stopped."""
    with _found(beginning, project) as (agents, turn):
        if turn.state != TurnState.QUEUED:
            what = "has ended" if turn.state == TurnState.FINISHED else "has begun"
            raise click.ClickException(
                f"turn {turn.id[:8]} {what}: `flowengine turn stop` ends one that has begun"
            )
        agents.stop(turn.project, turn.id, reason or "it was canceled", by=actor)
        _tell_state(agents.turn(turn.project, turn.id))


def approve(
    beginning: str, call: str, project: str | None, arguments: dict[str, Any] | None, actor: str
) -> None:
    with _found(beginning, project) as (agents, turn):
        call_id = _call_id(agents, turn, call)
        agents.approve(turn.project, turn.id, call_id, by=actor, arguments=arguments)
        console.print(line(f"call {call_id[:SHOWN_DIGITS]} of turn {turn.id[:8]} begins"))


def reject(beginning: str, call: str, project: str | None, reason: str, actor: str) -> None:
    with _found(beginning, project) as (agents, turn):
        call_id = _call_id(agents, turn, call)
        agents.reject(turn.project, turn.id, call_id, by=actor, reason=reason)
        console.print(line(f"call {call_id[:SHOWN_DIGITS]} of turn {turn.id[:8]} is rejected"))


def _call_id(agents: Agents, turn: TurnInfo, beginning: str) -> str:
    """Return the id of the call that begins so, or of the only one of this tool that waits."""
    calls = agents.calls(turn.project, turn.id)
    asked = [call for call in calls if call.is_open and call.approval == "asked"]
    found = [call for call in calls if call.id.startswith(beginning)]
    found = found or [call for call in asked if call.tool == beginning]
    if len(found) == 1:
        return found[0].id
    shown = [f"{call.tool}, call {call.id[:SHOWN_DIGITS]}" for call in asked]
    waits = f"people decide about: {'; '.join(shown) or 'none'}"
    problem = f"has no call {beginning!r}" if not found else f"has several calls {beginning!r}"
    raise click.ClickException(f"turn {turn.id[:8]} {problem}; {waits}")


def _tell_state(turn: TurnInfo) -> None:
    state = turn.status or f"{turn.state}: its agent takes the stop in soon"
    console.print(line(f"turn {turn.id[:8]} is {state}"))

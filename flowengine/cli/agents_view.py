"""`flowengine agents` and `flowengine turns`: lists."""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.table import Table

from flowengine.agents.views import AgentLine, agent_page, turn_page
from flowengine.cli.database import open_engine
from flowengine.cli.streams import json_of
from flowengine.cli.terminal import console, line, print_table
from flowengine.engine.results import duration
from flowengine.store.agent_turns import TurnInfo
from flowengine.store.database import system_clock
from flowengine.tenants import visible_tenant

_MAX_CELL = 500  #: characters of an error in a list
STATE_COLOURS = {
    "dispatched": "blue",
    "running": "blue",
    "suspended": "yellow",
    "active": "blue",
    "success": "green",
    "failed": "red",
    "canceled": "dim",
    "timeout": "red",
    "partial": "yellow",
    "queued": "dim",
    "idle": "dim",
}


def show_agents(
    *, as_json: bool, state: str | None, project: str | None, cursor: str | None, limit: int
) -> None:
    with open_engine() as engine, engine.database.read() as session:
        seen = visible_tenant(engine.settings.tenant, project)
        page = agent_page(session, seen, state, cursor, limit)
    if as_json:
        click.echo(json_of([asdict(one) for one in page.agents]))
    elif page.agents:
        print_table(_agents(page.agents, system_clock()))
    else:
        console.print(line("no agents"))
    _tell_cursor(page.cursor, as_json=as_json)


def show_turns(
    *,
    as_json: bool,
    agent: str | None,
    state: str | None,
    project: str | None,
    cursor: str | None,
    limit: int,
) -> None:
    with open_engine() as engine, engine.database.read() as session:
        seen = visible_tenant(engine.settings.tenant, project)
        page = turn_page(session, seen, agent, state, cursor, limit)
    if as_json:
        click.echo(json_of([turn._asdict() for turn in page.turns]))
    elif page.turns:
        print_table(_turns(page.turns, system_clock()))
    else:
        console.print(line("no turns"))
    _tell_cursor(page.cursor, as_json=as_json)


def _tell_cursor(cursor: str | None, *, as_json: bool) -> None:
    if cursor is None:
        return
    if as_json:
        click.echo(f"--cursor {cursor} continues the list", err=True)
    elif console.is_terminal:
        console.print(line((f"… more with --cursor {cursor}", "dim")))


def _agents(agents: list[AgentLine], now: int) -> Table:
    has_projects = any(one.project for one in agents)
    table = _table(has_projects, "agent", "state", "turn", "since", "waits for")
    for one in agents:
        table.add_row(
            *([line(one.project)] if has_projects else []),
            line(one.agent),
            line((one.state, STATE_COLOURS.get(one.state, ""))),
            (one.turn or "")[:8],
            duration(now - one.since),
            line(one.waits_for, limit=_MAX_CELL),
        )
    return table


def _turns(turns: list[TurnInfo], now: int) -> Table:
    has_projects = any(turn.project for turn in turns)
    headings = ("turn", "agent", "state", "age", "took", "steps", "tokens", "error")
    table = _table(has_projects, *headings)
    for turn in turns:
        state = turn.status or turn.state
        took = "" if turn.dispatched is None else duration((turn.finished or now) - turn.dispatched)
        table.add_row(
            *([line(turn.project)] if has_projects else []),
            turn.id[:8],
            line(turn.agent),
            line((state, STATE_COLOURS.get(state, ""))),
            duration(now - turn.enqueued),
            took,
            str(turn.steps),
            f"{turn.tokens:,}",
            line(error_text(turn), limit=_MAX_CELL),
        )
    return table


def error_text(turn: TurnInfo) -> str:
    """Return why a turn did not succeed: its code, and the message."""
    return ": ".join(text for text in (turn.error_code, turn.error) if text)


def _table(has_projects: bool, *headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in (*(("project",) if has_projects else ()), *headings):
        table.add_column(heading, overflow="fold")
    return table

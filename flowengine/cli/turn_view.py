"""`flowengine turn show`: one turn as a tree of steps, calls and cards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from rich.text import Text
from rich.tree import Tree

from flowengine.agents.views import SHOWN_DIGITS, TurnView, card_text, find_turn, turn_view
from flowengine.cli.agents_view import STATE_COLOURS, error_text
from flowengine.cli.database import open_engine
from flowengine.cli.streams import json_of
from flowengine.cli.terminal import console, line
from flowengine.engine.results import duration
from flowengine.store.agent_lists import CallInfo
from flowengine.store.agent_turns import StepRecord
from flowengine.store.cards import Card
from flowengine.store.database import system_clock
from flowengine.tenants import visible_tenant
from flowengine.turns.records import CardType

_MAX_TEXT = 300  #: characters of a card; `--json` has all
_SIGNS = {"success": "✓", "failed": "✗", "timeout": "✗", "canceled": "·", "partial": "~"}


def show_turn(turn_id: str, project: str | None, *, as_json: bool) -> None:
    with open_engine() as engine, engine.database.read() as session:
        seen = visible_tenant(engine.settings.tenant, project)
        view = turn_view(session, find_turn(session, turn_id, seen))
    if as_json:
        click.echo(json_of(_as_json(view)))
        return
    now = system_clock()
    console.print(_tree(view, now))
    if view.waits_for:
        console.print(line(("waits for ", "dim"), view.waits_for, limit=1_000))
    if error := error_text(view.turn):
        console.print(line(("error ", "dim"), (error, "red"), limit=2_000), soft_wrap=True)
    if view.deliverable is not None:
        shown = json_of(view.deliverable, indent=None)
        console.print(line(("deliverable ", "dim"), shown), soft_wrap=True)


def _tree(view: TurnView, now: int) -> Tree:
    turn = view.turn
    state = turn.status or turn.state
    took = "" if turn.dispatched is None else duration((turn.finished or now) - turn.dispatched)
    tokens = f"{turn.tokens:,} tokens"
    about = " · ".join(text for text in (f"turn {turn.id[:8]}", took, tokens) if text)
    tree = Tree(
        line(
            (turn.agent, "bold"), "  ", (state, STATE_COLOURS.get(state, "")), (f"  {about}", "dim")
        )
    )
    for card in view.cards:
        if card.type == CardType.INSTRUCTION:
            tree.add(line(("task ", "dim"), card_text(card), limit=_MAX_TEXT))
    for step in view.steps:
        _add_step(tree, view, step, now)
    for card in view.other_cards():
        if card.type == CardType.ERROR:
            tree.add(line(("✗ ", "red"), card_text(card), limit=_MAX_TEXT))
    for child_id, agent in view.children:
        tree.add(line(("asked ", "dim"), f"{agent}, turn {child_id[:8]}"))
    return tree


def _add_step(tree: Tree, view: TurnView, step: StepRecord, now: int) -> None:
    took = duration((step.ended or now) - step.started)
    about = f"  {took} · {step.tokens:,} tokens · run {step.run_id[:SHOWN_DIGITS]}"
    branch = tree.add(line(f"step {step.number} {step.status}", (about, "dim")))
    if view.draft is not None and step.ended is None:
        so_far = (f"so far, piece {view.draft.chunks}: ", "dim")
        branch.add(line(so_far, view.draft.text[-_MAX_TEXT:]))
    for card in view.cards_of_step(step.id):
        if (shown := _card(view, card, now)) is not None:
            branch.add(shown)


def _card(view: TurnView, card: Card, now: int) -> Text | None:
    """Return the line of a card; results of calls are part of the line of the call."""
    match card.type:
        case CardType.TOOL_CALL:
            return _call(view, card, now)
        case CardType.TOOL_RESULT:
            return None
        case CardType.ERROR:
            return line(("✗ ", "red"), card_text(card), limit=_MAX_TEXT)
    text = card_text(card)
    return line(text, limit=_MAX_TEXT) if text else None


def _call(view: TurnView, card: Card, now: int) -> Text:
    content = card.content if isinstance(card.content, Mapping) else {}
    call = view.call_of(card)
    named = f"{content.get('tool_name')}({json_of(content.get('arguments'), indent=None)})"
    result = next(
        (
            one
            for one in view.cards
            if one.type == CardType.TOOL_RESULT and one.tool_call_id == card.tool_call_id
        ),
        None,
    )
    ending = _ending(call, result)
    sign = (f"{_SIGNS.get(ending, '…')} ", STATE_COLOURS.get(ending, "yellow"))
    shown = line(sign, named, limit=_MAX_TEXT)
    shown.append_text(line((f"  {_about(call, ending, now)}", "dim"), limit=_MAX_TEXT))
    if result is not None and isinstance(result.content, Mapping):
        given = result.content.get("error") or result.content.get("result")
        shown.append_text(line(" → ", json_of(given, indent=None), limit=_MAX_TEXT))
    return shown


def _ending(call: CallInfo | None, result: Card | None) -> str:
    if call is not None and call.ending:
        return call.ending
    if result is not None and isinstance(result.content, Mapping):
        return str(result.content.get("status", ""))
    return call.state if call is not None else ""


def _about(call: CallInfo | None, ending: str, now: int) -> str:
    if call is None:
        return ending
    parts = [ending]
    if call.approval == "asked" and call.is_open:
        parts = [f"waits for a person: call {call.id[:SHOWN_DIGITS]}"]
    elif call.approval:
        parts.append(f"{call.approval} by {call.approved_by}")
    if call.run_id:
        parts.append(f"run {call.run_id[:SHOWN_DIGITS]}")
    if call.is_open and call.deadline is not None:
        parts.append(f"until {duration(max(0, call.deadline - now))} from now")
    return " · ".join(part for part in parts if part)


def _as_json(view: TurnView) -> dict[str, Any]:
    return {
        **view.turn._asdict(),
        "waits_for": view.waits_for,
        "steps_made": [step._asdict() for step in view.steps],
        "calls": [call._asdict() for call in view.calls],
        "cards": [card._asdict() for card in view.cards],
        "children": [{"turn": turn_id, "agent": agent} for turn_id, agent in view.children],
        "deliverable": view.deliverable,
    }

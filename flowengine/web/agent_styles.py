"""Formatting of agents and turns on a page: symbols, colours, labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowengine.agents.views import SHOWN_DIGITS, TurnView, card_text
from flowengine.secret_keys import without_secrets
from flowengine.store.agent_lists import CallInfo
from flowengine.store.agent_turns import TurnInfo
from flowengine.store.cards import Card
from flowengine.turns.records import CardType

__all__ = ["SHOWN_DIGITS", "card_text"]  # used by the templates

#: Badges of agents and turns. Blue is Flower's colour for active tasks.
BADGES = {
    "idle": "text-bg-secondary",
    "queued": "text-bg-secondary",
    "dispatched": "flow-in-progress",
    "running": "flow-in-progress",
    "active": "flow-in-progress",
    "suspended": "text-bg-warning",
    "success": "text-bg-success",
    "failed": "text-bg-danger",
    "timeout": "text-bg-danger",
    "canceled": "text-bg-secondary",
    "partial": "text-bg-warning",
}
_SIGNS = {
    "success": ("✓", "flow-green"),
    "failed": ("✗", "flow-red"),
    "timeout": ("✗", "flow-red"),
    "canceled": ("·", "text-body-secondary"),
    "dropped": ("·", "text-body-secondary"),
}
_TITLES = {
    CardType.INSTRUCTION: "task",
    CardType.RESULT_FIELDS: "fields asked for",
    CardType.DELIVERABLE: "deliverable",
    CardType.THOUGHT: "answer",
    CardType.ERROR: "error",
    CardType.TOOL_CALL: "call",
    CardType.TOOL_RESULT: "result",
    CardType.REMINDER: "reminder",
    CardType.PARENT: "asked by",
}


def state_of(turn: TurnInfo) -> str:
    """Return how a turn has ended, or its state."""
    return turn.status or turn.state


def error_of(turn: TurnInfo) -> str:
    return ": ".join(text for text in (turn.error_code, turn.error) if text)


def title_of(card: Card) -> str:
    return _TITLES.get(card.type, card.type)


def value_of(card: Card) -> Any:
    """Return the content of a card without secrets."""
    return without_secrets(card.content)


def steps_of(view: TurnView) -> list[tuple[Any, list[Card]]]:
    """Return each step with its cards; a result is shown with its call."""
    return [
        (step, [c for c in view.cards_of_step(step.id) if c.type != CardType.TOOL_RESULT])
        for step in view.steps
    ]


def arguments_of(card: Card) -> tuple[str, Any]:
    """Return the tool of a call's card, and the arguments."""
    content = card.content if isinstance(card.content, Mapping) else {}
    return str(content.get("tool_name", "")), without_secrets(content.get("arguments"))


def result_of(view: TurnView, card: Card) -> Any:
    """Return the result of a call, or its error; None while it has none."""
    found = _result_card(view, card)
    if found is None or not isinstance(found.content, Mapping):
        return None
    return without_secrets(found.content.get("error") or found.content.get("result"))


def has_result(view: TurnView, card: Card) -> bool:
    return _result_card(view, card) is not None


def _result_card(view: TurnView, card: Card) -> Card | None:
    return next(
        (
            one
            for one in view.cards
            if one.type == CardType.TOOL_RESULT and one.tool_call_id == card.tool_call_id
        ),
        None,
    )


def call_label(view: TurnView, card: Card, call: CallInfo | None) -> tuple[str, str, str]:
    """Return symbol, colour and label of a call."""
    found = _result_card(view, card)
    ending = call.ending if call is not None else None
    if ending is None and found is not None and isinstance(found.content, Mapping):
        ending = str(found.content.get("status", ""))
    if ending is None and call is not None and not call.is_open:
        ending = call.state
    if ending is not None:
        sign, colour = _SIGNS.get(ending, ("·", "text-body-secondary"))
        decided = f", {call.approval} by {call.approved_by}" if call and call.approved_by else ""
        return sign, colour, f"{ending}{decided}"
    if call is not None and call.approval == "asked":
        return "?", "text-warning-emphasis", "waits for a person"
    decided = f", approved by {call.approved_by}" if call and call.approved_by else ""
    return "…", "flow-blue", f"in progress{decided}"

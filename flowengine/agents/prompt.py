"""The request of a model call, from the cards of a turn: pure.

The order is history (the turns before, from the output box), context, then this turn. So the
newest instruction comes last when a turn begins, and before its own steps afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from flowengine.agents.profiles import Profile
from flowengine.models import Message, ModelRequest, Part, Tool, ToolCall, ToolResult
from flowengine.models.messages import Answer
from flowengine.program.nodes import Json
from flowengine.store.cards import Card
from flowengine.turns.delivery import values_of
from flowengine.turns.machine import SUBMIT
from flowengine.turns.records import CardType, Turn

_LAST_STEP = (
    "This is the last step of your budget: call no other tool, and end the task with its result."
)
_ABOUT_INHERITED = "This has happened before, for your information:"
_ABOUT_SUBMIT = "Give the result of the task, once. It ends the task."


def request_of(
    profile: Profile, turn: Turn, context: Sequence[Card], output: Sequence[Card]
) -> ModelRequest:
    """Return the request of a turn's next model call."""
    history = [card for card in output if card.position < turn.base_index]
    own = [
        card
        for card in output
        if card.position >= turn.base_index and card.type != CardType.INSTRUCTION
    ]
    is_last = turn.steps >= profile.max_steps
    messages = [Message.of("system", _system(profile, is_last=is_last))]
    messages += _messages(history)
    messages += _inherited([card for card in context if card.turn_id != turn.id])
    messages += _messages([card for card in context if _is_instruction(card, turn)])
    messages += _messages(own)
    tools: list[Tool] = []
    if not is_last:
        tools += [Tool(t.name, t.description, dict(t.input_schema)) for t in profile.tools]
    if profile.result is not None:
        tools.append(Tool(SUBMIT, _ABOUT_SUBMIT, dict(profile.result.schema)))
    options: dict[str, Any] = {}
    if profile.max_answer_tokens is not None:
        options["max_tokens"] = profile.max_answer_tokens
    return ModelRequest(tuple(messages), tuple(tools), profile.model, **options)


def _system(profile: Profile, *, is_last: bool) -> str:
    parts = [profile.instructions]
    if profile.result is not None:
        parts.append(f"When you have the result, call {SUBMIT} with it, alone.")
    if is_last:
        parts.append(_LAST_STEP)
    return "\n\n".join(part for part in parts if part)


def _is_instruction(card: Card, turn: Turn) -> bool:
    return card.type == CardType.INSTRUCTION and card.turn_id == turn.id


def _inherited(cards: Sequence[Card]) -> list[Message]:
    """Return the cards of another box as one text.

    They are no messages of this agent: the box may end with a call that has no result yet, which
    no provider takes.
    """
    lines = [line for card in cards if (line := _line(card))]
    return [Message.of("user", "\n".join([_ABOUT_INHERITED, *lines]))] if lines else []


def _line(card: Card) -> str:
    content = card.content
    match card.type:
        case CardType.INSTRUCTION:
            return f"Task of {card.author or 'a user'}: {content}"
        case CardType.THOUGHT:
            text = Answer.from_json(content).text
            return f"{card.author}: {text}" if text else ""
        case CardType.TOOL_RESULT:
            result = _result(content)
            return f"Result of a tool: {result.content}"
        case CardType.DELIVERABLE:
            values = values_of(content)
            is_shown = isinstance(values, str)  # a text is the last answer
            return "" if is_shown else f"{card.author}: {json.dumps(values, ensure_ascii=False)}"
    return ""


def _messages(cards: Iterable[Card]) -> list[Message]:
    """Return cards as messages; the results of one answer's calls are one message."""
    found: list[Message] = []
    results: list[ToolResult] = []

    def flush() -> None:
        if results:
            found.append(Message("tool", _in_order(results, found)))
            results.clear()

    for card in cards:
        if card.type == CardType.TOOL_RESULT:
            results.append(_result(card.content))
        elif card.type != CardType.TOOL_CALL:  # the answer has its calls
            flush()
            if (message := _message(card)) is not None:
                found.append(message)
    flush()
    return found


def _in_order(results: Sequence[ToolResult], before: Sequence[Message]) -> tuple[Part, ...]:
    """Return results in the order of their calls: they arrive in any order."""
    calls = [p.id for m in before[-1:] for p in m.content if isinstance(p, ToolCall)]
    place = {call_id: at for at, call_id in enumerate(calls)}
    return tuple(sorted(results, key=lambda result: place.get(result.call_id, len(calls))))


def _message(card: Card) -> Message | None:
    content = card.content
    match card.type:
        case CardType.INSTRUCTION:
            return Message.of("user", str(content))
        case CardType.THOUGHT:
            return Answer.from_json(content).message
        case CardType.REMINDER:
            return Message.of("user", str(content))
        case CardType.ERROR if isinstance(content, dict):
            # So that the next turn does not follow a call without its result.
            return Message.of("user", f"The task was ended: {content.get('message')}")
    return None


def _result(content: Json) -> ToolResult:
    assert isinstance(content, dict)
    error = content.get("error")
    shown = error if error is not None else content.get("result")
    text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
    return ToolResult(str(content["model_call_id"]), text, is_error=error is not None)

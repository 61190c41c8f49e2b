"""The conversation with a model about one step. Pure: the recorded entries decide what follows.

    last entry                          next move
    ----------------------------------  --------------------------------------------------
    none, or all calls have results     Ask; Fail after `max_turns` answers
    a call of a tool                    Call
    a call that cannot be made          Reply, with the reason
    a result that fits                  Finish
    a result that does not, or text     Reply or Ask once (repair), then Fail
    an answer that was cut or declined  Fail

A process that reads the same entries makes the same move: a killed runner goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from flowengine.errors import (
    ModelAnswerCut,
    ModelDeclined,
    ModelError,
    ModelResultRefused,
    ModelTurnsExceeded,
)
from flowengine.models import Answer, Message, Part, StopReason, Text, ToolCall, ToolResult
from flowengine.program.nodes import Json

Entry: TypeAlias = Answer | ToolResult


@dataclass(frozen=True, slots=True)
class Ask:
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Call:
    call: ToolCall


@dataclass(frozen=True, slots=True)
class Reply:
    """A result of a call that no tool is needed for."""

    result: ToolResult


@dataclass(frozen=True, slots=True)
class Finish:
    result: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Fail:
    problem: ModelError


Move: TypeAlias = Ask | Call | Reply | Finish | Fail


@dataclass(frozen=True, slots=True)
class Rules:
    provider: str
    first: tuple[Message, ...]  #: the prompt
    tools: Collection[str]
    submit: str  #: the tool that gives the result
    misfit: Callable[[Mapping[str, Json]], str]  #: why a result does not fit; empty if it does
    max_turns: int = 20
    max_repairs: int = 1


def next_move(entries: Sequence[Entry], rules: Rules) -> Move:
    at = max((i for i, entry in enumerate(entries) if isinstance(entry, Answer)), default=None)
    if at is None:
        return Ask(rules.first)
    answer = entries[at]
    assert isinstance(answer, Answer)
    if answer.stop_reason is StopReason.MAX_TOKENS:
        return Fail(ModelAnswerCut(rules.provider, f"{answer.usage.output_tokens} tokens"))
    if answer.stop_reason is StopReason.DECLINED:
        return Fail(ModelDeclined(rules.provider, answer.text[:500]))
    has_result = len(entries) - at - 1
    if has_result < len(answer.tool_calls):
        return _of_call(answer.tool_calls[has_result], _repairs(entries[:at], rules), rules)
    is_text = not answer.tool_calls and answer.stop_reason is not StopReason.PAUSED
    if is_text and _repairs(entries[:at], rules) >= rules.max_repairs:
        detail = f"it answers with text instead of {rules.submit}: {answer.text[:200]!r}"
        return Fail(ModelResultRefused(rules.provider, detail))
    if sum(isinstance(entry, Answer) for entry in entries) >= rules.max_turns:
        return Fail(ModelTurnsExceeded(rules.provider, f"{rules.max_turns} turns"))
    return Ask(messages_of(entries, rules))


def _of_call(call: ToolCall, repairs: int, rules: Rules) -> Move:
    if call.name == rules.submit:
        return _of_result(call, repairs, rules)
    if call.name not in rules.tools:
        known = ", ".join([*sorted(rules.tools), rules.submit])
        return _refuse(call, f"there is no tool {call.name!r}; call one of: {known}")
    if call.unreadable:
        return _refuse(call, f"the arguments are no JSON object: {call.unreadable[:200]!r}")
    return Call(call)


def _of_result(call: ToolCall, repairs: int, rules: Rules) -> Move:
    if call.unreadable:
        problem = f"it is no JSON object: {call.unreadable[:200]!r}"
    else:
        problem = rules.misfit(call.arguments)
    if not problem:
        return Finish(dict(call.arguments))
    if repairs >= rules.max_repairs:
        return Fail(ModelResultRefused(rules.provider, problem))
    return _refuse(call, f"the result is refused: {problem}; call {rules.submit} once more")


def _refuse(call: ToolCall, why: str) -> Reply:
    return Reply(ToolResult(call.id, why, is_error=True))


def _repairs(entries: Sequence[Entry], rules: Rules) -> int:
    """Count the answers whose result was refused."""
    answers = [entry for entry in entries if isinstance(entry, Answer)]
    return sum(_is_refused(answer, rules) for answer in answers)


def _is_refused(answer: Answer, rules: Rules) -> bool:
    if not answer.tool_calls:
        return answer.stop_reason is not StopReason.PAUSED
    return any(call.name == rules.submit for call in answer.tool_calls)


def messages_of(entries: Sequence[Entry], rules: Rules) -> tuple[Message, ...]:
    """Return the whole conversation as the model reads it next."""
    messages, results = list(rules.first), list[Part]()

    def flush() -> None:
        if results:
            messages.append(Message("tool", tuple(results)))
            results.clear()

    for entry in entries:
        if isinstance(entry, ToolResult):
            results.append(entry)
            continue
        flush()
        messages.append(entry.message)
        if not entry.tool_calls and entry.stop_reason is not StopReason.PAUSED:
            nudge = f"Give the result by calling the tool {rules.submit}."
            messages.append(Message("user", (Text(nudge),)))
    flush()
    return tuple(messages)

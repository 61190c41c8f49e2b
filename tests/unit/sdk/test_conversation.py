"""The moves of a conversation, by its entries alone; the names of tools."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowengine.models import (
    Answer,
    Message,
    Opaque,
    StopReason,
    Text,
    ToolCall,
    ToolResult,
    calling,
)
from flowengine.sdk.conversation import (
    Ask,
    Call,
    Entry,
    Fail,
    Finish,
    Reply,
    Rules,
    messages_of,
    next_move,
)
from flowengine.sdk.model_tools import SUBMIT, tool_names

FIRST = (Message.of("user", "go"),)
SEARCH, GOOD, BAD = calling("search", q=1), calling(SUBMIT, x=1), calling(SUBMIT, y=1)
FOUND, REFUSED = ToolResult("call_search", "a"), ToolResult("call_submit_result", "no", True)
WORDS = Answer((Text("hm"),))


def misfit(result: Any) -> str:
    return "" if "x" in result else "'x' is missing"


RULES = Rules("p", FIRST, {"search"}, SUBMIT, misfit, max_turns=3)


def kind(*entries: Entry) -> str:
    move = next_move(entries, RULES)
    return type(move.problem).__name__ if isinstance(move, Fail) else type(move).__name__


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ((), "Ask"),
        ((SEARCH,), "Call"),
        ((SEARCH, FOUND), "Ask"),
        ((SEARCH, FOUND, GOOD), "Finish"),
        ((calling("delete"),), "Reply"),
        ((Answer((ToolCall("1", "search", {}, "{"),)),), "Reply"),
        ((BAD,), "Reply"),
        ((BAD, REFUSED), "Ask"),
        ((BAD, REFUSED, GOOD), "Finish"),
        ((BAD, REFUSED, BAD), "ModelResultRefused"),
        ((BAD, REFUSED, WORDS), "ModelResultRefused"),
        ((Answer((ToolCall("1", SUBMIT, {}, "{"),)),), "Reply"),
        ((WORDS,), "Ask"),
        ((WORDS, WORDS), "ModelResultRefused"),
        ((WORDS, BAD), "ModelResultRefused"),
        ((WORDS, SEARCH, FOUND, GOOD), "Finish"),
        ((Answer((Text("x"),), StopReason.PAUSED),), "Ask"),
        ((Answer((), StopReason.MAX_TOKENS),), "ModelAnswerCut"),
        ((Answer((), StopReason.DECLINED),), "ModelDeclined"),
        ((SEARCH, FOUND) * 2, "Ask"),
        ((SEARCH, FOUND) * 3, "ModelTurnsExceeded"),
        ((SEARCH, FOUND, SEARCH, FOUND, GOOD), "Finish"),
    ],
)
def test_the_last_entries_decide_the_next_move(entries: tuple[Entry, ...], expected: str) -> None:
    assert kind(*entries) == expected


def test_the_calls_of_one_answer_are_made_in_order() -> None:
    both = Answer((*SEARCH.content, *GOOD.content), StopReason.TOOL_CALLS)
    assert next_move([both], RULES) == Call(SEARCH.tool_calls[0])
    assert next_move([both, FOUND], RULES) == Finish({"x": 1})


def test_a_refused_result_says_why() -> None:
    move = next_move([BAD], RULES)
    assert isinstance(move, Reply)
    expected = "the result is refused: 'x' is missing; call submit_result once more"
    assert (move.result.content, move.result.is_error) == (expected, True)


def test_the_messages_are_the_whole_conversation() -> None:
    thought = Answer((Opaque("p", {"a": 1}), *SEARCH.content), StopReason.TOOL_CALLS)
    found = messages_of([thought, FOUND, WORDS], RULES)
    assert [message.role for message in found] == ["user", "assistant", "tool", "assistant", "user"]
    assert found[1] == thought.message
    assert found[-1].text == "Give the result by calling the tool submit_result."
    assert next_move([thought, FOUND, WORDS], RULES) == Ask(found)


_names = st.lists(st.text("ab._é", min_size=1, max_size=80), max_size=8)


@given(_names)
def test_tool_names_are_valid_and_different(names: list[str]) -> None:
    found = tool_names([*names, "submit_result"])
    assert set(found) == {*names, "submit_result"}
    assert len(set(found.values())) == len(found)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in found.values())
    assert SUBMIT not in found.values()


def test_a_qualified_name_is_a_readable_tool() -> None:
    assert tool_names(["billing.Pay", "Pay"]) == {"billing.Pay": "billing__Pay", "Pay": "Pay"}

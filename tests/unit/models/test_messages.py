"""Messages, their JSON form, retries and failures: no provider is asked."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowengine.errors import (
    ModelError,
    ModelOverloaded,
    ModelPackageMissing,
    ModelRateLimited,
    ModelRequestRefused,
    RunnerRefused,
    ValueRefused,
)
from flowengine.models import (
    Answer,
    Anthropic,
    Message,
    ModelRequest,
    ModelRetry,
    Opaque,
    OpenAI,
    ScriptedModel,
    StopReason,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
    calling,
)
from flowengine.models.failures import retry_after, shown

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
_maps = st.dictionaries(st.text(max_size=3), _json, max_size=2)
_parts = st.one_of(
    st.builds(Text, st.text()),
    st.builds(ToolCall, st.text(), st.text(), _maps, st.text()),
    st.builds(ToolResult, st.text(), st.text(), st.booleans()),
    st.builds(Opaque, st.text(), _maps),
)
_contents = st.lists(_parts, max_size=3).map(tuple)
_counts = st.integers(0, 10**9)
_answers = st.builds(
    Answer,
    _contents,
    st.sampled_from(StopReason),
    st.builds(Usage, _counts, _counts, _counts, _counts),
    st.text(),
    st.text(),
)
_messages = st.builds(Message, st.sampled_from(["system", "user", "assistant", "tool"]), _contents)


@given(_answers, _messages, st.builds(Tool, st.text(), st.text(), _maps))
def test_json_reads_back_equal(answer: Answer, message: Message, tool: Tool) -> None:
    assert Answer.from_json(answer.to_json()) == answer
    assert Message.from_json(message.to_json()) == message
    assert Tool.from_json(tool.to_json()) == tool


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "an answer is a map, not None"),
        ({"stop_reason": "end", "content": 1}, "the content of a message is a list of parts: 1"),
        ({"stop_reason": "why"}, "an answer has an unknown stop_reason: 'why'"),
        ({"stop_reason": "end", "content": [{"type": "image"}]}, "has an unknown type"),
        ({"stop_reason": "end", "content": [{"type": "text"}]}, "'text' is text, not None"),
        (
            {"stop_reason": "end", "content": [], "usage": {"input_tokens": -1}},
            "'input_tokens' is a number of tokens, not -1",
        ),
    ],
)
def test_json_of_another_form_is_refused(value: Any, message: str) -> None:
    with pytest.raises(ValueRefused, match=message):
        Answer.from_json(value)


def test_a_message_has_one_of_four_roles() -> None:
    with pytest.raises(ValueRefused, match="a role of system, user, assistant, tool"):
        Message.from_json({"role": "root", "content": []})


def test_usages_add_up() -> None:
    assert Usage(1, 2, 3, 4) + Usage(10, 20, 30, 40) == Usage(11, 22, 33, 44)


# --- retries ---

RATE, LOAD = ModelRateLimited("p", "x", 7.0), ModelOverloaded("p", "x")


@pytest.mark.parametrize(
    ("problem", "attempt", "wait"),
    [
        (RATE, 1, 7.0),
        (RATE, 3, 7.0),
        (RATE, 4, None),
        (ModelRateLimited("p", "x", 60.5), 1, None),
        (ModelRateLimited("p", "x", 0.0), 1, 0.0),
        (LOAD, 1, 1.0),
        (LOAD, 2, 2.0),
        (LOAD, 3, 4.0),
        (LOAD, 4, None),
        (ModelRequestRefused("p", "x"), 1, None),
    ],
)
def test_a_request_is_repeated_after_the_time_that_the_provider_demands(
    problem: ModelError, attempt: int, wait: float | None
) -> None:
    assert ModelRetry().wait_after(problem, attempt) == wait


def test_waits_have_a_limit() -> None:
    assert ModelRetry(attempts=100, max_wait=5).wait_after(LOAD, 99) == 5
    with pytest.raises(RunnerRefused, match="attempts of at least 1"):
        ModelRetry(attempts=0)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after": "Tue, 17 Nov 2026 00:00:30 GMT"}, 30.0),
        ({"retry-after": "Mon, 16 Nov 2026 00:00:30 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-4"}, None),
        ({"retry-after": "inf"}, None),
    ],
)
def test_retry_after_is_a_number_or_a_date(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, datetime(2026, 11, 17, tzinfo=UTC)) == seconds


def test_a_message_of_a_provider_is_clipped_and_safe_to_show() -> None:
    assert len(shown("x" * 10_000)) == 501
    assert "\x1b" not in shown("a\x1b[31m\nb")


# --- the scripted model ---


def test_a_script_gives_its_answers_in_order_and_then_refuses() -> None:
    model = ScriptedModel([calling("search", q=1), "done", LOAD])
    request = ModelRequest((Message.of("user", "hello"),))
    assert model.answer(request).tool_calls == (ToolCall("call_search", "search", {"q": 1}),)
    assert model.answer(request).text == "done"
    with pytest.raises(ModelOverloaded):
        model.answer(request)
    with pytest.raises(ModelRequestRefused, match="the script has ended: this is request 4"):
        model.answer(request)
    assert model.requests == [request] * 4


def test_a_function_answers_every_request() -> None:
    model = ScriptedModel(lambda request: request.messages[-1].text.upper())
    for word in ("a", "b"):
        assert model.answer(ModelRequest((Message.of("user", word),))).text == word.upper()


# --- packages ---


@pytest.mark.parametrize(("kind", "package"), [(Anthropic, "anthropic"), (OpenAI, "openai")])
def test_a_missing_package_names_the_extra(
    kind: Any, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModelPackageMissing, match=rf"pip install 'flowengine\[{package}\]'"):
        kind("m", api_key="k").answer(ModelRequest((Message.of("user", "a"),)))


def test_importing_models_loads_no_provider() -> None:
    script = (
        "import sys, flowengine.models, flowengine.sdk\n"
        "heavy = {'anthropic', 'openai', 'httpx', 'httpx2', 'mcp'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout.decode().strip() == "[]"

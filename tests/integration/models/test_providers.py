"""Providers through their real packages, against a local server that speaks their APIs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing, closing
from typing import Any

import pytest

from flowengine.errors import (
    ModelAnswerUnreadable,
    ModelAuthenticationFailed,
    ModelContextTooLong,
    ModelError,
    ModelOverloaded,
    ModelRateLimited,
    ModelRequestRefused,
    ModelStreamCut,
    ModelTimedOut,
    ModelUnreachable,
)
from flowengine.models import (
    Answer,
    Anthropic,
    Chunk,
    Message,
    Model,
    ModelRequest,
    Opaque,
    OpenAI,
    StopReason,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
)
from tests.model_server import (
    KEY,
    Refuses,
    Says,
    Sends,
    Stalls,
    serving,
    text,
    thinking,
    use,
)

TOOL = Tool("search", "Search the archive.", {"type": "object", "properties": {"q": {}}})
HELLO = ModelRequest((Message.of("system", "be brief"), Message.of("user", "hello")), (TOOL,))

Make = Callable[..., Model]
Ask = Callable[[Model, ModelRequest], Answer]


def anthropic(url: str, **options: Any) -> Model:
    return Anthropic("claude-x", api_key=KEY, base_url=url, **options)


def openai(url: str, **options: Any) -> Model:
    return OpenAI("gpt-x", api_key=KEY, base_url=f"{url}/v1", **options)


def at_once(model: Any, request: ModelRequest) -> Answer:
    with closing(model):
        answer: Answer = model.answer(request)
    return answer


def streamed(model: Any, request: ModelRequest) -> Answer:
    with closing(model):
        *chunks, answer = model.stream(request)
    assert all(isinstance(chunk, Chunk) for chunk in chunks)
    assert isinstance(answer, Answer)
    words = "".join(c.text for c in chunks if isinstance(c, Chunk) and c.kind == "text")
    assert words == answer.text
    return answer


def awaited(model: Any, request: ModelRequest) -> Answer:
    async def ask() -> Answer:
        async with aclosing(model):
            answer: Answer = await model.aanswer(request)
        return answer

    return asyncio.run(ask())


def streamed_async(model: Any, request: ModelRequest) -> Answer:
    async def read() -> list[Chunk | Answer]:
        async with aclosing(model):
            return [piece async for piece in model.astream(request)]

    *_, answer = asyncio.run(read())
    assert isinstance(answer, Answer)
    return answer


PROVIDERS = [anthropic, openai]
WAYS = [at_once, streamed, awaited, streamed_async]
of_each = pytest.mark.parametrize("make", PROVIDERS)
each_way = pytest.mark.parametrize("ask", WAYS)
#: Each provider and each way once in two: making a client is slow.
mixed = pytest.mark.parametrize(
    ("make", "ask"),
    [(anthropic, at_once), (openai, streamed), (openai, awaited), (anthropic, streamed_async)],
)


@of_each
@each_way
def test_an_answer_has_text_tool_calls_and_usage(make: Make, ask: Ask) -> None:
    blocks = [text("let me look"), use("search", q="kettle")]
    with serving([Says(blocks, "tool_use"), Says([text("found it")])]) as server:
        model = make(server.url)
        first = ask(model, HELLO)
        second = ask(model, HELLO)
    assert first.content == (
        Text("let me look"),
        ToolCall("toolu_1", "search", {"q": "kettle"}),
    )
    assert (first.stop_reason, second.stop_reason) == (StopReason.TOOL_CALLS, StopReason.END)
    assert first.usage == Usage(12, 7, 3, 0)
    assert first.model in ("claude-x", "gpt-x")
    assert second.text == "found it"


def conversation() -> ModelRequest:
    asked = (
        Opaque("anthropic", {"type": "thinking", "thinking": "hm", "signature": "s1"}),
        Text("one moment"),
        ToolCall("c1", "search", {"q": 1}),
        ToolCall("c2", "search", {}, "{broken"),
    )
    results = (ToolResult("c1", "a kettle"), ToolResult("c2", "no JSON", is_error=True))
    return ModelRequest(
        (*HELLO.messages, Message("assistant", asked), Message("tool", results)),
        (TOOL,),
        model="another",
        tool_choice="required",
        max_tokens=99,
    )


def test_a_conversation_is_written_in_the_form_of_anthropic() -> None:
    with serving([Says([text("ok")])]) as server:
        at_once(anthropic(server.url, temperature=0), conversation())
        (body,) = server.requests
    assert body == {
        "model": "another",
        "max_tokens": 99,
        "system": "be brief",
        "temperature": 0,
        "tool_choice": {"type": "any"},
        "tools": [TOOL.to_json()],
        "messages": [
            {"role": "user", "content": [text("hello")]},
            {
                "role": "assistant",
                "content": [
                    thinking("hm", "s1"),
                    text("one moment"),
                    use("search", "c1", q=1),
                    use("search", "c2"),
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "a kettle"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "c2",
                        "content": "no JSON",
                        "is_error": True,
                    },
                ],
            },
        ],
    }


def test_a_conversation_is_written_in_the_form_of_openai() -> None:
    with serving([Says([text("ok")])]) as server:
        at_once(openai(server.url), conversation())
        (body,) = server.requests
    calls = [("c1", '{"q": 1}'), ("c2", "{broken")]
    assert body["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
        {
            "role": "assistant",
            "content": "one moment",
            "tool_calls": [
                {"id": i, "type": "function", "function": {"name": "search", "arguments": a}}
                for i, a in calls
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "a kettle"},
        {"role": "tool", "tool_call_id": "c2", "content": "error: no JSON"},
    ]
    assert (body["max_tokens"], body["tool_choice"]) == (99, "required")
    assert body["tools"][0]["function"]["parameters"] == TOOL.input_schema


@pytest.mark.parametrize("ask", [at_once, streamed])
def test_a_signed_thinking_block_comes_back_as_it_was_sent(ask: Ask) -> None:
    thought = thinking("it is about a kettle", "c2lnbmVk")
    says = Says([thought, use("search", q=1)], "tool_use")
    with serving([says, Says([text("ok")])]) as server:
        model = anthropic(server.url, thinking={"type": "enabled", "budget_tokens": 1024})
        answer = ask(model, ModelRequest(HELLO.messages, (TOOL,), tool_choice="required"))
        again = Answer.from_json(answer.to_json())
        assert again == answer
        ask(model, ModelRequest((*HELLO.messages, again.message), (TOOL,)))
        assert server.requests[1]["messages"][1]["content"][0] == thought
        assert server.requests[0]["tool_choice"] == {"type": "auto"}, "a thinking model is free"


@pytest.mark.parametrize(("make", "ask"), [(anthropic, at_once), (openai, streamed_async)])
@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Refuses(400, "invalid_request_error", "tools.0: bad"), ModelRequestRefused),
        (Refuses(400, "invalid_request_error", "prompt is too long: 9"), ModelContextTooLong),
        (Refuses(400, "context_length_exceeded", "too much"), ModelContextTooLong),
        (Refuses(404, "not_found_error", "model: claude-x"), ModelRequestRefused),
        (Refuses(403, "permission_error", "no"), ModelAuthenticationFailed),
        (Refuses(500, "api_error", "oops"), ModelOverloaded),
        (Refuses(529, "overloaded_error", "Overloaded"), ModelOverloaded),
        (Sends(b"{not json"), ModelAnswerUnreadable),
        (Sends(b"<html>a proxy</html>", "text/html"), ModelAnswerUnreadable),
    ],
    ids=str,
)
def test_every_failure_is_an_error_of_one_tree(
    make: Make, ask: Ask, reply: Any, error: type[ModelError]
) -> None:
    with serving([reply]) as server:
        model = make(server.url)
        with pytest.raises(ModelError) as raised:
            ask(model, HELLO)
    if isinstance(reply, Sends) and ask is streamed_async:
        assert isinstance(raised.value, ModelAnswerUnreadable | ModelStreamCut)
    else:
        assert type(raised.value) is error
    assert str(raised.value).startswith(("anthropic: ", "openai: "))


@mixed
def test_a_rate_limit_says_when_to_come_back(make: Make, ask: Ask) -> None:
    reply = Refuses(429, "rate_limit_error", "slow down", {"retry-after": "7"})
    with serving([reply]) as server, pytest.raises(ModelRateLimited, match="slow down") as raised:
        ask(make(server.url), HELLO)
    assert raised.value.retry_after == 7
    assert len(server.requests) == 1, "the package does not repeat it behind our back"


@pytest.mark.parametrize("ask", [streamed, streamed_async])
@pytest.mark.parametrize("cut_after", [3])
@of_each
def test_a_cut_stream_is_no_answer(make: Make, ask: Ask, cut_after: int) -> None:
    says = Says([text("half of it")], cut_after=cut_after)
    with serving([says]) as server, pytest.raises(ModelStreamCut, match="before the answer did"):
        ask(make(server.url), HELLO)


@of_each
@pytest.mark.parametrize("ask", [streamed, streamed_async])
def test_an_error_inside_a_stream_is_the_same_error(make: Make, ask: Ask) -> None:
    reply = Refuses(200, "overloaded_error", "Overloaded", in_stream=True)
    with serving([reply]) as server, pytest.raises(ModelOverloaded, match="Overloaded"):
        ask(make(server.url), HELLO)


@mixed
def test_a_slow_answer_times_out(make: Make, ask: Ask) -> None:
    with serving([Stalls()]) as server, pytest.raises(ModelTimedOut, match="no answer in time"):
        ask(make(server.url), ModelRequest(HELLO.messages, timeout=0.2))


@mixed
def test_a_wrong_key_is_refused(make: Make, ask: Ask) -> None:
    kind: Any = Anthropic if make is anthropic else OpenAI
    path = "" if make is anthropic else "/v1"
    with serving([]) as server, pytest.raises(ModelAuthenticationFailed) as raised:
        ask(kind("m", api_key="wrong-secret", base_url=server.url + path), HELLO)
    assert "401: " in str(raised.value)
    assert "wrong-secret" not in str(raised.value)
    assert str(raised.value).endswith("or pass api_key=")


@pytest.mark.parametrize(
    ("kind", "name"), [(Anthropic, "ANTHROPIC_API_KEY"), (OpenAI, "OPENAI_API_KEY")]
)
def test_a_missing_key_is_named(kind: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(name, raising=False)
    with pytest.raises(ModelAuthenticationFailed, match=f"no API key: {name} is not set"):
        kind("m").answer(HELLO)


@mixed
def test_a_server_that_is_not_there_is_unreachable(make: Make, ask: Ask) -> None:
    with pytest.raises(ModelUnreachable, match="check the network and base_url"):
        ask(make("http://127.0.0.1:9"), HELLO)


def test_arguments_that_are_no_json_are_kept_as_the_model_wrote_them() -> None:
    with serving([Says([use("search", **{"$raw": '{"q": '})])]) as server:
        answer = at_once(openai(server.url), HELLO)
    assert answer.tool_calls == (ToolCall("toolu_1", "search", {}, '{"q": '),)
    assert Answer.from_json(answer.to_json()) == answer


@of_each
def test_a_request_without_a_model_is_refused(make: Make) -> None:
    kind: Any = Anthropic if make is anthropic else OpenAI
    with pytest.raises(ModelRequestRefused, match="no model is named"):
        kind(api_key=KEY).answer(HELLO)


@of_each
def test_a_model_may_be_asked_in_one_event_loop_after_the_other(make: Make) -> None:
    with serving([Says([text("a")]), Says([text("b")])]) as server:
        model = make(server.url)
        assert [awaited(model, HELLO).text, awaited(model, HELLO).text] == ["a", "b"]

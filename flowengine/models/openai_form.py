"""Requests and answers in the form of OpenAI's chat completions, which many servers speak. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from flowengine.errors import ModelAnswerUnreadable, ModelStreamCut
from flowengine.models.failures import shown
from flowengine.models.messages import (
    Answer,
    Message,
    Opaque,
    Part,
    StopReason,
    Text,
    ToolCall,
    ToolResult,
    Usage,
)
from flowengine.models.protocol import Chunk, ModelRequest, model_name

PROVIDER = "openai"
_STOP = {
    "stop": StopReason.END,
    "tool_calls": StopReason.TOOL_CALLS,
    "function_call": StopReason.TOOL_CALLS,
    "length": StopReason.MAX_TOKENS,
    "content_filter": StopReason.DECLINED,
}


def written(
    request: ModelRequest, model: str, options: Mapping[str, Any], limit_name: str
) -> dict[str, Any]:
    """Return the arguments of a request; `limit_name` is the field for the limit of tokens."""
    messages: list[dict[str, Any]] = []
    for message in request.messages:
        messages += _messages(message)
    body: dict[str, Any] = {
        "model": model_name(PROVIDER, model, request),
        "messages": messages,
        limit_name: request.max_tokens,
    }
    if request.tools:
        body["tool_choice"] = request.tool_choice
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": dict(tool.input_schema),
                },
            }
            for tool in request.tools
        ]
    # Passed on as they are: the package's own parameters change with its versions.
    return body | ({"extra_body": dict(options)} if options else {})


def _messages(message: Message) -> list[dict[str, Any]]:
    """Return one message in their form; each result of a tool is a message of its own."""
    results = [
        {"role": "tool", "tool_call_id": part.call_id, "content": _result(part)}
        for part in message.content
        if isinstance(part, ToolResult)
    ]
    if message.role == "tool":
        text = [{"role": "user", "content": message.text}] if message.text else []
        return results + text
    found: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.role != "assistant":
        return [*results, *([found] if message.text or not results else [])]
    calls = [part for part in message.content if isinstance(part, ToolCall)]
    if calls:
        found["content"] = message.text or None
        found["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": call.unreadable or json.dumps(dict(call.arguments)),
                },
            }
            for call in calls
        ]
    for part in message.content:
        if isinstance(part, Opaque) and part.provider == PROVIDER:
            found |= dict(part.data)
    return [found]


def _result(part: ToolResult) -> str:
    return f"error: {part.content}" if part.is_error else part.content


def answer_from(body: Any) -> Answer:
    """Read a completion; raises ModelAnswerUnreadable."""
    choices = body.get("choices") if isinstance(body, Mapping) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        raise ModelAnswerUnreadable(PROVIDER, f"no completion: {shown(body)[:200]}")
    message = choices[0].get("message")
    if not isinstance(message, Mapping):
        raise ModelAnswerUnreadable(PROVIDER, f"a choice without message: {shown(body)[:200]}")
    parts: list[Part] = []
    if reasoning := message.get("reasoning_content"):
        parts.append(Opaque(PROVIDER, {"reasoning_content": reasoning}))
    if isinstance(message.get("content"), str) and message["content"]:
        parts.append(Text(message["content"]))
    parts += [_call(call) for call in message.get("tool_calls") or [] if isinstance(call, Mapping)]
    reason = _STOP.get(str(choices[0].get("finish_reason")), StopReason.OTHER)
    refusal = message.get("refusal")
    if isinstance(refusal, str) and refusal:
        parts, reason = [*parts, Text(refusal)], StopReason.DECLINED
    return Answer(
        tuple(parts),
        reason,
        _usage(body.get("usage")),
        str(body.get("model", "")),
        str(body.get("id", "")),
    )


def _call(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function")
    found = function if isinstance(function, Mapping) else {}
    text = found.get("arguments") or "{}"
    try:
        arguments = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        arguments = None
    is_map = isinstance(arguments, dict)
    return ToolCall(
        str(call.get("id", "")),
        str(found.get("name", "")),
        arguments if isinstance(arguments, dict) else {},
        "" if is_map else str(text),
    )


def _usage(usage: Any) -> Usage:
    found = usage if isinstance(usage, Mapping) else {}
    details = found.get("prompt_tokens_details")
    cached = _count(details, "cached_tokens")
    total = _count(found, "prompt_tokens")
    return Usage(max(0, total - cached), _count(found, "completion_tokens"), cached, 0)


def _count(found: Any, name: str) -> int:
    value = found.get(name) if isinstance(found, Mapping) else 0
    return value if type(value) is int and value > 0 else 0


class StreamedCompletion:
    """Puts the chunks of a stream together. One of them has the reason of the end."""

    def __init__(self) -> None:
        self._body: dict[str, Any] = {}
        self._texts = {"content": "", "reasoning_content": "", "refusal": ""}
        self._calls: dict[int, dict[str, Any]] = {}
        self._reason: str | None = None

    def take(self, event: Any) -> Sequence[Chunk]:
        """Add a chunk; return the pieces of the answer that it brings."""
        if not isinstance(event, Mapping):
            raise ModelAnswerUnreadable(PROVIDER, f"no chunk: {shown(event)[:200]}")
        self._body |= {name: event[name] for name in ("id", "model", "usage") if event.get(name)}
        choices = event.get("choices") or []
        if not choices:
            return ()
        self._reason = choices[0].get("finish_reason") or self._reason
        delta = choices[0].get("delta") or {}
        pieces: list[Chunk] = []
        for name in self._texts:
            if isinstance(text := delta.get(name), str) and text:
                self._texts[name] += text
                pieces.append(Chunk("thinking" if name == "reasoning_content" else "text", text))
        for call in delta.get("tool_calls") or []:
            pieces += self._add(call)
        return pieces

    def _add(self, call: Mapping[str, Any]) -> Sequence[Chunk]:
        empty = {"id": "", "function": {"name": "", "arguments": ""}}
        index = call.get("index", 0)
        kept = self._calls.setdefault(index, empty)
        function = call.get("function") or {}
        kept["id"] = call.get("id") or kept["id"]
        kept["function"]["name"] += function.get("name") or ""
        text = function.get("arguments") or ""
        kept["function"]["arguments"] += text
        return (Chunk("arguments", text, index),) if text else ()

    def answer(self) -> Answer:
        """Return the whole answer; raises ModelStreamCut if its end is missing."""
        if self._reason is None:
            raise ModelStreamCut(PROVIDER, "finish_reason is missing")
        message = {**self._texts, "tool_calls": [self._calls[at] for at in sorted(self._calls)]}
        choice = {"message": message, "finish_reason": self._reason}
        return answer_from({**self._body, "choices": [choice]})

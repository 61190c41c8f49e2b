"""Requests and answers in the form of Anthropic's Messages API. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from flowengine.errors import ModelAnswerUnreadable, ModelStreamCut
from flowengine.models.failures import refused, shown
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

PROVIDER = "anthropic"
_STOP = {
    "end_turn": StopReason.END,
    "stop_sequence": StopReason.END,
    "tool_use": StopReason.TOOL_CALLS,
    "max_tokens": StopReason.MAX_TOKENS,
    "model_context_window_exceeded": StopReason.MAX_TOKENS,
    "refusal": StopReason.DECLINED,
    "pause_turn": StopReason.PAUSED,
}
_CHOICES = {"auto": "auto", "required": "any", "none": "none"}


def written(request: ModelRequest, model: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a request."""
    body: dict[str, Any] = {
        "model": model_name(PROVIDER, model, request),
        "max_tokens": request.max_tokens,
        "messages": _messages(request.messages),
    }
    if request.system:
        body["system"] = request.system
    if request.tools:
        body["tools"] = [tool.to_json() for tool in request.tools]
        choice = request.tool_choice
        # The API refuses a forced call while the model thinks.
        thinks = options.get("thinking", {}).get("type") in ("enabled", "adaptive")
        choice = "auto" if thinks and choice == "required" else choice
        body["tool_choice"] = {"type": _CHOICES[choice]}
    # Passed on as they are: the package's own parameters change with its versions.
    return body | ({"extra_body": dict(options)} if options else {})


def _messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "system":
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = [block for part in message.content if (block := _block(part))]
        if found and found[-1]["role"] == role:  # the roles take turns
            found[-1]["content"] += blocks
        elif blocks:
            found.append({"role": role, "content": blocks})
    return found


def _block(part: Part) -> dict[str, Any]:
    match part:
        case Text(text):
            return {"type": "text", "text": text} if text.strip() else {}  # it refuses empty ones
        case ToolCall(call_id, name, arguments):
            return {"type": "tool_use", "id": call_id, "name": name, "input": dict(arguments)}
        case ToolResult(call_id, content, is_error):
            result = {"type": "tool_result", "tool_use_id": call_id, "content": content}
            return result | ({"is_error": True} if is_error else {})
        case Opaque(provider, data):
            return dict(data) if provider == PROVIDER else {}


def answer_from(body: Any) -> Answer:
    """Read a message of the API; raises ModelAnswerUnreadable."""
    if not isinstance(body, Mapping) or body.get("type") != "message":
        raise ModelAnswerUnreadable(PROVIDER, f"no message: {shown(body)[:200]}")
    blocks = body.get("content")
    if not isinstance(blocks, list) or not all(isinstance(block, Mapping) for block in blocks):
        raise ModelAnswerUnreadable(PROVIDER, f"a message without content: {shown(body)[:200]}")
    return Answer(
        tuple(_part(block) for block in blocks),
        _STOP.get(str(body.get("stop_reason")), StopReason.OTHER),
        _usage(body.get("usage")),
        str(body.get("model", "")),
        str(body.get("id", "")),
    )


def _part(block: Mapping[str, Any]) -> Part:
    match block.get("type"):
        case "text" if set(block) <= {"type", "text", "citations"} and not block.get("citations"):
            return Text(str(block.get("text", "")))
        case "tool_use":
            given, text = block.get("input"), str(block.get("unreadable", ""))
            is_map = isinstance(given, Mapping) and not text
            arguments = dict(given) if is_map and given else {}
            unreadable = "" if is_map else text or json.dumps(given)
            return ToolCall(
                str(block.get("id", "")), str(block.get("name", "")), arguments, unreadable
            )
    return Opaque(PROVIDER, dict(block))


def _usage(usage: Any) -> Usage:
    found = usage if isinstance(usage, Mapping) else {}

    def count(name: str) -> int:
        value = found.get(name)
        return value if type(value) is int and value > 0 else 0

    return Usage(
        count("input_tokens"),
        count("output_tokens"),
        count("cache_read_input_tokens"),
        count("cache_creation_input_tokens"),
    )


class StreamedMessage:
    """Puts the events of a stream together. The last one is `message_stop`."""

    def __init__(self) -> None:
        self._message: dict[str, Any] | None = None
        self._blocks: dict[int, dict[str, Any]] = {}
        self._json: dict[int, str] = {}
        self._is_complete = False

    def take(self, event: Mapping[str, Any]) -> Chunk | None:
        """Add an event; return the piece of the answer that it brings."""
        match event.get("type"):
            case "message_start":
                self._message = dict(event["message"])
            case "content_block_start":
                self._blocks[event["index"]] = dict(event["content_block"])
            case "content_block_delta":
                return self._delta(event["index"], event["delta"])
            case "message_delta":
                message = self._begun()
                message |= {k: v for k, v in event["delta"].items() if v is not None}
                usage = {k: v for k, v in (event.get("usage") or {}).items() if v is not None}
                message["usage"] = {**(message.get("usage") or {}), **usage}
            case "message_stop":
                self._is_complete = True
            case "error":
                error = event.get("error") or {}
                raise refused(PROVIDER, 200, (error.get("type"),), str(error.get("message")), {})
        return None

    def _delta(self, index: int, delta: Mapping[str, Any]) -> Chunk | None:
        block = self._blocks[index]
        match delta["type"]:
            case "text_delta":
                block["text"] = block.get("text", "") + delta["text"]
                return Chunk("text", delta["text"], index)
            case "input_json_delta":
                self._json[index] = self._json.get(index, "") + delta["partial_json"]
                return Chunk("arguments", delta["partial_json"], index)
            case "thinking_delta":
                block["thinking"] = block.get("thinking", "") + delta["thinking"]
                return Chunk("thinking", delta["thinking"], index)
            case "signature_delta":
                block["signature"] = block.get("signature", "") + delta["signature"]
            case "citations_delta":
                block["citations"] = [*(block.get("citations") or []), delta["citation"]]
        return None

    def _begun(self) -> dict[str, Any]:
        if self._message is None:
            raise ModelAnswerUnreadable(PROVIDER, "a stream that does not begin with message_start")
        return self._message

    def answer(self) -> Answer:
        """Return the whole answer; raises ModelStreamCut if its end is missing."""
        if not self._is_complete:
            raise ModelStreamCut(PROVIDER, "message_stop is missing")
        for index, text in self._json.items():
            block = self._blocks[index]
            try:
                block["input"] = json.loads(text) if text else block.get("input", {})
            except ValueError:  # cut at max_tokens
                block["unreadable"] = text
        content = [self._blocks[index] for index in sorted(self._blocks)]
        return answer_from({**self._begun(), "content": content})

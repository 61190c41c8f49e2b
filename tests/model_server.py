"""A local HTTP server that speaks the APIs of Anthropic and OpenAI, streams and failures included.

It runs in a thread of the test. Each request takes the next reply of the script, or asks the only
function of it. A request without the right key is refused before that.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import tornado.httpserver
import tornado.iostream
import tornado.netutil
import tornado.web

KEY = "the-key"
USAGE = {"input_tokens": 12, "output_tokens": 7, "cache_read_input_tokens": 3}


@dataclass(frozen=True)
class Says:
    """An answer with these blocks, in Anthropic's form."""

    blocks: Sequence[dict[str, Any]]
    stop_reason: str = "end_turn"
    cut_after: int | None = None  #: events; then the connection is closed
    pings: int = 0


@dataclass(frozen=True)
class Refuses:
    status: int
    kind: str
    message: str = "no"
    headers: dict[str, str] = field(default_factory=dict)
    in_stream: bool = False  #: as an event, after the answer has begun


@dataclass(frozen=True)
class Sends:
    """Bytes that are no answer."""

    body: bytes
    content_type: str = "application/json"


@dataclass(frozen=True)
class Stalls:
    """Nothing, until the client has gone."""


Reply: TypeAlias = Says | Refuses | Sends | Stalls
Script: TypeAlias = Sequence[Reply] | Callable[[dict[str, Any]], Reply]


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def use(name: str, call_id: str = "toolu_1", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def thinking(words: str, signature: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": words, "signature": signature}


class ModelServer:
    def __init__(self, script: Script) -> None:
        self._script, self._lock = script, threading.Lock()
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""

    def next(self, headers: dict[str, str], body: dict[str, Any]) -> Reply:
        with self._lock:
            self.requests.append(body)
            self.headers.append(headers)
            if callable(self._script):
                return self._script(body)
            number = len(self.requests) - 1
            assert number < len(self._script), "the script of the server has ended"
            return self._script[number]


@contextmanager
def serving(script: Script) -> Iterator[ModelServer]:
    """A server in a thread of its own; `url` is its address."""
    found, ready, ended = ModelServer(script), threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        routes = [("/v1/messages", _Messages), ("/v1/chat/completions", _Completions)]
        app = tornado.web.Application(
            [(path, handler, {"server": found}) for path, handler in routes],
            log_function=lambda _: None,
        )
        server = tornado.httpserver.HTTPServer(app)
        sockets = tornado.netutil.bind_sockets(0, "127.0.0.1")
        server.add_sockets(sockets)
        found.url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        loops.append(asyncio.get_running_loop())
        ready.set()
        await ended.wait()
        server.stop()
        await server.close_all_connections()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(20)
    try:
        yield found
    finally:
        loops[0].call_soon_threadsafe(ended.set)
        thread.join(20)


class _Handler(tornado.web.RequestHandler):
    def initialize(self, server: ModelServer) -> None:
        self.server, self.gone = server, asyncio.Event()

    def on_connection_close(self) -> None:
        self.gone.set()

    def key(self) -> str:
        raise NotImplementedError

    def error(self, kind: str, message: str) -> dict[str, Any]:
        raise NotImplementedError

    def whole(self, says: Says, body: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def events(self, says: Says, body: dict[str, Any]) -> Iterator[str]:
        raise NotImplementedError

    async def post(self) -> None:
        body = json.loads(self.request.body)
        if self.key() != KEY:
            reply: Reply = Refuses(401, "authentication_error", "invalid x-api-key")
        else:
            reply = self.server.next(dict(self.request.headers), body)
        match reply:
            case Stalls():
                await self.gone.wait()
            case Sends(content, kind):
                self.set_header("content-type", kind)
                self.write(content)
            case Refuses(status, kind, message, headers, in_stream):
                if in_stream:
                    await self._stream(Says([text("so far")], cut_after=2), body, end=False)
                    self.write(f"event: error\ndata: {json.dumps(self.error(kind, message))}\n\n")
                    return
                self.set_status(status)
                for name, value in headers.items():
                    self.set_header(name, value)
                self.write(self.error(kind, message))
            case Says():
                if body.get("stream"):
                    await self._stream(reply, body)
                else:
                    self.write(self.whole(reply, body))

    async def _stream(self, says: Says, body: dict[str, Any], *, end: bool = True) -> None:
        self.set_header("content-type", "text/event-stream")
        for number, event in enumerate(self.events(says, body)):
            if number == says.cut_after:
                if end:
                    await self.flush()
                    self.request.connection.stream.close()  # type: ignore[union-attr]
                return
            self.write(event)
        await self.flush()


class _Messages(_Handler):
    def key(self) -> str:
        headers = self.request.headers  # the package has sent both, by its version
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        return headers.get("x-api-key", bearer)

    def error(self, kind: str, message: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": kind, "message": message}}

    def whole(self, says: Says, body: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": list(says.blocks),
            "stop_reason": says.stop_reason,
            "stop_sequence": None,
            "usage": USAGE,
        }

    def events(self, says: Says, body: dict[str, Any]) -> Iterator[str]:
        whole = self.whole(says, body)
        begun = {"content": [], "stop_reason": None, "usage": {**USAGE, "output_tokens": 1}}
        yield _event("message_start", message={**whole, **begun})
        for _ in range(says.pings):
            yield _event("ping")
        for index, block in enumerate(says.blocks):
            yield from _block_events(index, block)
        stop = {"stop_reason": says.stop_reason, "stop_sequence": None}
        yield _event("message_delta", delta=stop, usage={"output_tokens": USAGE["output_tokens"]})
        yield _event("message_stop")


def _block_events(index: int, block: dict[str, Any]) -> Iterator[str]:
    begin = {"text": "", "thinking": "", "signature": "", "input": {}}
    empty = {name: begin.get(name, value) for name, value in block.items()}
    yield _event("content_block_start", index=index, content_block=empty)
    deltas: list[dict[str, Any]] = []
    match block["type"]:
        case "text":
            half = len(block["text"]) // 2
            pieces = (block["text"][:half], block["text"][half:])
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
        case "tool_use":
            written = json.dumps(block["input"])
            pieces = (written[:5], written[5:])
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": block["thinking"]}]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
    for delta in deltas:
        yield _event("content_block_delta", index=index, delta=delta)
    yield _event("content_block_stop", index=index)


def _event(kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"


class _Completions(_Handler):
    def key(self) -> str:
        return self.request.headers.get("authorization", "").removeprefix("Bearer ")

    def error(self, kind: str, message: str) -> dict[str, Any]:
        return {"error": {"type": kind, "code": kind, "message": message, "param": None}}

    def whole(self, says: Says, body: dict[str, Any]) -> dict[str, Any]:
        words = "".join(block["text"] for block in says.blocks if block["type"] == "text")
        calls = [_function(block) for block in says.blocks if block["type"] == "tool_use"]
        reason = "tool_calls" if calls else says.stop_reason.replace("end_turn", "stop")
        message = {"role": "assistant", "content": words or None}
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [
                {
                    "index": 0,
                    "finish_reason": reason,
                    "message": message | ({"tool_calls": calls} if calls else {}),
                }
            ],
            "usage": {
                "prompt_tokens": 15,
                "completion_tokens": 7,
                "total_tokens": 22,
                "prompt_tokens_details": {"cached_tokens": 3},
            },
        }

    def events(self, says: Says, body: dict[str, Any]) -> Iterator[str]:
        whole = self.whole(says, body)
        choice = whole["choices"][0]
        shared = {"id": whole["id"], "object": "chat.completion.chunk", "model": whole["model"]}

        def chunk(delta: dict[str, Any], reason: str | None = None) -> str:
            choices = [{"index": 0, "delta": delta, "finish_reason": reason}]
            return f"data: {json.dumps({**shared, 'created': 1, 'choices': choices})}\n\n"

        yield chunk({"role": "assistant", "content": ""})
        words = choice["message"]["content"] or ""
        for piece in (words[:3], words[3:]):
            yield chunk({"content": piece})
        for index, call in enumerate(choice["message"].get("tool_calls", [])):
            function = call["function"]
            first = {**call, "index": index, "function": {**function, "arguments": ""}}
            yield chunk({"tool_calls": [first]})
            for piece in (function["arguments"][:4], function["arguments"][4:]):
                yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        yield chunk({}, choice["finish_reason"])
        last = {**shared, "created": 1, "choices": [], "usage": whole["usage"]}
        yield f"data: {json.dumps(last)}\n\n"
        yield "data: [DONE]\n\n"


def _function(block: dict[str, Any]) -> dict[str, Any]:
    arguments = block["input"]
    written = arguments["$raw"] if "$raw" in arguments else json.dumps(arguments)
    return {
        "id": block["id"],
        "type": "function",
        "function": {"name": block["name"], "arguments": written},
    }

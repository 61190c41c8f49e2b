"""One request over a connection of tornado: read within its limits, and answered."""

from __future__ import annotations

import asyncio
import http
from collections.abc import Awaitable
from typing import Protocol, cast
from urllib.parse import parse_qs

from tornado.http1connection import HTTP1Connection
from tornado.httputil import (
    HTTPHeaders,
    HTTPMessageDelegate,
    RequestStartLine,
    ResponseStartLine,
)
from tornado.iostream import StreamClosedError

from flowengine.http.messages import Request, Response, problem

_QUERY_FIELDS = 100
_WRITE_SECONDS = 60.0  # that a client may need to read a response
#: A body that is too large is read and dropped up to this size, so that its sender reads the
#: response; the connection of a larger one is closed at once, and its sender may only see that.
DROPPED_BYTES = 64 * 1024 * 1024
_running: set[asyncio.Task[None]] = set()  # the loop has weak references alone


class Answering(Protocol):
    """The server of a connection."""

    max_body_bytes: int

    def count(self, change: int) -> None:
        """Count the requests that are being answered."""

    async def answer(self, request: Request) -> Response: ...


class Exchange(HTTPMessageDelegate):
    """Reads one request and writes its response."""

    def __init__(self, server: Answering, connection: HTTP1Connection) -> None:
        self._server, self._connection = server, connection
        self._parts: list[bytes] = []
        self._size = 0
        self._gone = asyncio.Event()
        self._line: RequestStartLine | None = None
        self._headers: dict[str, str] = {}
        self._is_answered = False

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        self._line = cast(RequestStartLine, start_line)
        self._headers = {name.lower(): text for name, text in headers.get_all()}
        length = self._headers.get("content-length", "")
        size = int(length) if length.isascii() and length.isdigit() and len(length) < 19 else 0
        is_asked = "expect" in self._headers  # the client waits before it sends the body
        if size > DROPPED_BYTES or (is_asked and size > self._server.max_body_bytes):
            self._connection.set_max_body_size(size)
            return self._begin(self._too_large())
        return None

    def data_received(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size <= self._server.max_body_bytes:
            self._parts.append(chunk)
        else:
            self._parts.clear()

    def finish(self) -> None:
        if self._is_answered:
            return
        if self._size > self._server.max_body_bytes:
            self._begin(self._too_large())
            return
        self._connection.set_close_callback(self._gone.set)
        self._begin(None)

    def on_connection_close(self) -> None:
        self._gone.set()

    def _too_large(self) -> Response:
        most = self._server.max_body_bytes
        message = f"the body of the request has more than {most} bytes"
        hint = "write the data to a file or an object store and send its address"
        return problem(413, "body_too_large", message, hint)

    def _begin(self, response: Response | None) -> asyncio.Task[None]:
        self._is_answered = True
        self._server.count(1)
        task = asyncio.ensure_future(self._answer(response))
        _running.add(task)
        task.add_done_callback(_running.discard)
        return task

    async def _answer(self, response: Response | None) -> None:
        try:
            if response is None:
                response = await self._server.answer(self._request())
            await self._write(response)
        except ValueError as refused:
            hint = f"a query has at most {_QUERY_FIELDS} fields, in UTF-8"
            await self._write(problem(400, "bad_query", str(refused), hint))
        finally:
            self._server.count(-1)

    def _request(self) -> Request:
        assert self._line is not None
        path, _, query = self._line.path.partition("?")
        fields = parse_qs(
            query, keep_blank_values=True, errors="strict", max_num_fields=_QUERY_FIELDS
        )
        context = self._connection.context
        return Request(
            self._line.method,
            path,
            fields,
            self._headers,
            b"".join(self._parts),
            remote=str(getattr(context, "remote_ip", "")),
            gone=self._gone,
        )

    async def _write(self, response: Response) -> None:
        assert self._line is not None
        stream = self._connection.stream
        headers = HTTPHeaders({"Content-Length": str(len(response.body)), "Server": "flowengine"})
        if response.body:
            headers["Content-Type"] = response.content_type
        headers["Cache-Control"] = "no-store"
        headers["X-Content-Type-Options"] = "nosniff"
        for name, text in response.headers.items():
            headers[name] = text
        reason = http.HTTPStatus(response.status).phrase
        line = ResponseStartLine("HTTP/1.1", response.status, reason)
        body = b"" if self._line.method == "HEAD" else response.body
        try:
            written = self._connection.write_headers(line, headers, body)
            async with asyncio.timeout(_WRITE_SECONDS):
                await written
            is_delivered = not stream.closed()
            self._connection.finish()
        except (StreamClosedError, TimeoutError, OSError):
            is_delivered = False
            stream.close()
        if not is_delivered and response.undelivered is not None:
            response.undelivered()

"""An HTTP server beside the work of a process: tornado's loop in a daemon thread of its own.

    server = HttpServer([Route("GET", "/health", health)], port=8080)
    server.start()
    ...
    server.stop()

A handler that is a plain function is called in one of a few threads, as it may block; one that is
a coroutine function in the loop. Only this module, `exchange` and `flowengine.web` import tornado.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
import threading
import weakref
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from flowengine.errors import HttpServerRefused
from flowengine.event_loop import DaemonThreads
from flowengine.fork import at_fork
from flowengine.http.messages import Request, Response, Route, RouteTable, problem

try:
    from tornado.http1connection import HTTP1Connection
    from tornado.httpserver import HTTPServer
    from tornado.httputil import HTTPConnection, HTTPMessageDelegate, HTTPServerConnectionDelegate
    from tornado.iostream import IOStream

    from flowengine.http.exchange import DROPPED_BYTES, Exchange
except ImportError:
    raise ImportError("the HTTP server needs tornado: pip install 'flowengine[http]'") from None

log = logging.getLogger("flowengine")

_MAX_PORT = 65535
_HEADER_BYTES = 32 * 1024
_IDLE_SECONDS = 75.0  # that a connection may wait for its next request, or need for its headers
_BODY_SECONDS = 60.0  # that a client may need to send a body
_BACKLOG = 128
_JOIN_SECONDS = 2.0  # that the thread gets to end after its requests have
_TAKEN = {errno.EADDRINUSE, errno.EACCES}  # another port may do


class HttpServer:
    """Serves routes until `stop`. A forked child leaves it to its parent."""

    def __init__(
        self,
        routes: Sequence[Route],
        host: str = "127.0.0.1",
        port: int = 8080,
        port_attempts: int = 1,
        ssl_options: ssl.SSLContext | None = None,
        max_body_bytes: int = 1024 * 1024,
        *,
        threads: int = 4,
        max_connections: int = 1000,
    ) -> None:
        """`port` 0 takes any free one; with `port_attempts` the ports above it are tried, too."""
        self._table = RouteTable(routes)
        self._host, self._first, self._attempts = host, port, port_attempts
        self._ssl, self.max_body_bytes = ssl_options, max_body_bytes
        self.pool, self._most = DaemonThreads(threads, "flowengine-http"), max_connections
        self.port = 0  #: that it is bound to, from `start` on
        self._sockets: list[socket.socket] = []
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._idle: asyncio.Event | None = None  #: no request is being answered
        self._grace = 0.0
        self.streams: weakref.WeakSet[IOStream] = weakref.WeakSet()  #: of open connections
        self.active = 0  #: requests that are being answered

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._ssl else 'http'}://{host}:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    # --- life ---

    def start(self) -> None:
        """Bind a port and serve. Raises HttpServerRefused if no port can be bound."""
        if self._thread is not None:
            raise HttpServerRefused(self._host, self._first, "it was started before")
        self._sockets = self._bound()
        self.port = int(self._sockets[0].getsockname()[1])
        at_fork(in_child=self._forget)
        started = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name="flowengine-http", daemon=True
        )
        self._thread.start()
        started.wait()

    def stop(self, timeout: float = 10.0) -> None:
        """Accept nothing more, give running requests that many seconds, and close."""
        loop, thread, stopping = self._loop, self._thread, self._stopping
        if loop is None or thread is None or stopping is None:
            return
        self._grace = timeout
        self.call(stopping.set)
        if thread is not threading.current_thread():
            thread.join(timeout + _JOIN_SECONDS)

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in the loop, if it runs."""
        if (loop := self._loop) is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(function)

    def _bound(self) -> list[socket.socket]:
        tried = range(self._first, min(self._first + max(self._attempts, 1), _MAX_PORT + 1))
        reason = f"a port is a number from 0 to {_MAX_PORT}"
        if self._first < 0 or not tried:
            raise HttpServerRefused(self._host, self._first, reason)
        for port in tried:
            try:
                return _listening(self._host, port)
            except OSError as refused:  # also `gaierror`: an unknown host
                reason = refused.strerror or str(refused)
                if refused.errno not in _TAKEN:
                    break
        raise HttpServerRefused(self._host, self._first, reason, len(tried))

    def _run(self, started: threading.Event) -> None:
        try:
            asyncio.run(self._serve(started))
        except Exception:
            log.exception(
                "the HTTP server at %s has ended, no request is answered: restart this process",
                self.url,
                extra={"action": "http_server_failed"},
            )
        finally:
            started.set()
            self.pool.end()

    async def _serve(self, started: threading.Event) -> None:
        self._loop, self._stopping, self._idle = (
            asyncio.get_running_loop(),
            asyncio.Event(),
            asyncio.Event(),
        )
        self._idle.set()
        server = _Server(
            _Requests(self),
            ssl_options=self._ssl,
            max_header_size=_HEADER_BYTES,
            max_body_size=DROPPED_BYTES,
            idle_connection_timeout=_IDLE_SECONDS,
            body_timeout=_BODY_SECONDS,
        )
        server.known, server.most = self.streams, self._most
        server.add_sockets(self._sockets)
        started.set()
        await self._stopping.wait()
        server.stop()  # closes the sockets
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace):
                await self._idle.wait()
        for stream in list(self.streams):
            stream.close()
        await asyncio.sleep(0)  # for the callbacks of closed connections

    def _forget(self) -> None:
        """Close the copies of a forked child: a connection ends when its last copy is closed."""
        for copied in [*self._sockets, *(stream.socket for stream in list(self.streams))]:
            with contextlib.suppress(OSError, AttributeError):
                copied.close()
        self._loop = self._thread = None

    # --- requests ---

    def count(self, change: int) -> None:
        self.active += change
        if self._idle is not None:
            self._idle.clear() if self.active else self._idle.set()

    async def answer(self, request: Request) -> Response:
        found = self._table.find(request.method, request.path)
        if isinstance(found, Response):
            return found
        route, arguments = found
        request = replace(request, arguments=arguments)
        try:
            if route.is_async:
                return await cast(Awaitable[Response], route.handler(request))
            call = asyncio.get_running_loop().run_in_executor(self.pool, route.handler, request)
            return cast(Response, await call)
        except Exception:
            log.exception(
                "request %s %s failed and was answered with 500",
                route.method,
                route.path,
                extra={"action": "http_request_failed"},
            )
            hint = "the log of the server has the cause"
            return problem(500, "internal_error", "the server could not answer", hint)


def _listening(host: str, port: int) -> list[socket.socket]:
    """Return a socket for each address of a host, all of one port."""
    listening: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, *_, address in dict.fromkeys(found):
            sock = socket.socket(family, socket.SOCK_STREAM)
            listening.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # With port 0 the first address chooses one for all.
            sock.bind((address[0], listening[0].getsockname()[1] or port, *address[2:]))
            sock.listen(_BACKLOG)
    except OSError:
        for sock in listening:
            sock.close()
        raise
    return listening


class _Server(HTTPServer):
    known: weakref.WeakSet[IOStream]
    most: int

    def handle_stream(self, stream: IOStream, address: Any) -> None:
        if len(self.known) >= self.most:
            stream.close()
            return
        self.known.add(stream)
        stream.set_nodelay(True)
        super().handle_stream(stream, address)

    def on_close(self, server_conn: object) -> None:
        self.known.discard(cast(Any, server_conn).stream)
        super().on_close(server_conn)


class _Requests(HTTPServerConnectionDelegate):
    def __init__(self, server: HttpServer) -> None:
        self._server = server

    def start_request(
        self, server_conn: object, request_conn: HTTPConnection
    ) -> HTTPMessageDelegate:
        return Exchange(self._server, cast(HTTP1Connection, request_conn))

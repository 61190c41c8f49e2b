"""The server of the wire protocol: one process that agents of any language talk to.

    server = WireServer(engine, port=8080)
    server.start()

Requests are answered by a few threads, as they query the database; claims that wait hold none. One
listener of the process wakes them all. It needs the extra `http`.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import ssl
import threading
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from flowengine.engine import Engine
from flowengine.errors import (
    ActionRefused,
    AlreadyRunning,
    AnswerRefused,
    EarlierRunFailed,
    FlowengineError,
    InvalidInputs,
    ProgramError,
    TenantRefused,
    TooManyRuns,
    UnknownRun,
    WorkflowClosed,
)
from flowengine.http import Request, Response, Route
from flowengine.http.messages import JSON_TYPE
from flowengine.http.server import HttpServer
from flowengine.sdk.stand_in import PollerStandIn
from flowengine.sdk.wire.access import Access, Caller
from flowengine.sdk.wire.documents import ClaimRequest, read_document
from flowengine.sdk.wire.openapi import openapi_document
from flowengine.sdk.wire.operations import Operations
from flowengine.sdk.wire.refusals import Refused
from flowengine.sdk.wire.routes import OPENAPI_PATH, OPERATIONS, Operation
from flowengine.store.failures import is_unavailable
from flowengine.store.protocol import CompletionListener
from flowengine.worker.outage_log import outage_log

log = logging.getLogger("flowengine")

_DEPTH = 4  # lists and maps around a value in a document
_THREADS = 8
_JOIN_SECONDS = 2.0
#: The codes of errors of the engine, the first that fits.
_CODES: tuple[tuple[type[FlowengineError], str], ...] = (
    (UnknownRun, "unknown_run"),
    (TenantRefused, "foreign_tenant"),
    (InvalidInputs, "refused_inputs"),
    (ProgramError, "refused_program"),
    (AlreadyRunning, "already_running"),
    (TooManyRuns, "too_many_runs"),
    (WorkflowClosed, "action_refused"),
    (EarlierRunFailed, "action_refused"),
    (ActionRefused, "action_refused"),
    (AnswerRefused, "action_refused"),
    (FlowengineError, "refused_value"),
)


class WireServer:
    """Serves the wire protocol for one engine, until `stop`."""

    def __init__(
        self,
        engine: Engine,
        host: str = "127.0.0.1",
        port: int = 8080,
        *,
        ssl_options: ssl.SSLContext | None = None,
        threads: int = _THREADS,
    ) -> None:
        settings = engine.settings
        self._engine = engine
        self._access = Access(engine.database, settings.tenant, settings.max_wrong_tokens)
        self._operations = Operations(engine, self._is_notified)
        self._document = Response.of_json(openapi_document())
        routes = [Route("GET", OPENAPI_PATH, self._openapi)]
        routes += [
            Route(operation.method, operation.path, self._handler(operation))
            for operation in OPERATIONS
        ]
        self._http = HttpServer(
            routes,
            host,
            port,
            ssl_options=ssl_options,
            max_body_bytes=settings.max_request_bytes,
            threads=threads,
        )
        self._listener: CompletionListener | None = None
        self._stack = ExitStack()
        self._stopping = threading.Event()
        self._upkeep = threading.Thread(target=self._run, name="flowengine-upkeep", daemon=True)

    @property
    def url(self) -> str:
        return self._http.url

    @property
    def port(self) -> int:
        return self._http.port

    def start(self) -> None:
        """Bind and serve. Raises HttpServerRefused."""
        self._http.start()
        operations = self._operations
        routed = self._engine.pollers.routed(operations.claims.wake, operations.servers.ids)
        self._listener = self._stack.enter_context(routed)
        self._upkeep.start()

    def stop(self, timeout: float = 10.0) -> None:
        """Answer waiting claims, let running requests end for that time, and close."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._http.call(self._operations.claims.stop)
        self._http.stop(timeout)
        self._stack.close()
        if self._upkeep.is_alive():
            self._upkeep.join(_JOIN_SECONDS)
        self._operations.claims.close()
        self._operations.servers.flush()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _is_notified(self) -> bool:
        return self._listener is not None and self._listener.is_listening

    # --- upkeep ---

    def _run(self) -> None:
        """Run recovery while nobody else does, and write the counts of servers."""
        settings, stand_in = self._engine.settings, PollerStandIn()
        outages, passed = outage_log(settings.database_url), 0.0
        while not self._stopping.wait(settings.watchdog_interval):
            passed += settings.watchdog_interval
            try:
                with outages.watch():
                    stand_in.watch(self._engine)
                    if passed >= settings.heartbeat_interval:
                        passed = 0.0
                        self._operations.servers.flush()
            except Exception as problem:
                if not is_unavailable(problem):
                    log.exception(
                        "a recovery pass of the server at %s failed; it is repeated in %g s",
                        self.url,
                        settings.watchdog_interval,
                        extra={"action": "recovery_failed"},
                    )

    # --- requests ---

    async def _openapi(self, request: Request) -> Response:
        return self._document

    def _handler(self, operation: Operation) -> Callable[[Request], Any]:
        if operation.document is ClaimRequest:
            return self._claim
        return functools.partial(self._call, operation)

    def _call(self, operation: Operation, request: Request) -> Response:
        try:
            caller = self._caller(operation, request)
            document = self._read(operation, request)
            answer = getattr(self._operations, operation.name)(caller, request, document)
            return Response.of_json(answer.model_dump())
        except Exception as problem:
            return _refused(problem, request).response()

    async def _claim(self, request: Request) -> Response:
        """Claims wait in the loop; a thread is needed if the token or the server is read."""
        operation = _CLAIM
        try:
            caller = self._access.cached(request.headers.get("authorization", ""))
            if caller is None:
                caller = await self._in_thread(lambda: self._caller(operation, request))
            caller.need(*operation.scopes)
            wanted = self._read(operation, request)
            known = self._operations.servers
            server = known.cached(caller, wanted.server_id)
            if server is None:
                found = caller
                server = await self._in_thread(lambda: known.get(found, wanted.server_id))
            return await self._operations.claim_tasks(caller, request, wanted, server)
        except Exception as problem:
            return _refused(problem, request).response()

    def _in_thread(self, call: Callable[[], Any]) -> Awaitable[Any]:
        return asyncio.get_running_loop().run_in_executor(self._http.pool, call)

    def _caller(self, operation: Operation, request: Request) -> Caller:
        if self._stopping.is_set():
            raise Refused("stopping", "this server stops")
        caller = self._access.caller(request.headers.get("authorization", ""), request.remote)
        caller.need(*operation.scopes)
        return caller

    def _read(self, operation: Operation, request: Request) -> Any:
        if operation.document is None:
            return None
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if request.body and kind != JSON_TYPE:
            raise Refused("not_json", f"the body of the request is of type {kind or 'unknown'!r}")
        depth = self._engine.settings.max_json_depth + _DEPTH
        if operation.name == "start_run":  # it may have a program
            depth = max(depth, self._engine.settings.max_program_depth + _DEPTH)
        return read_document(request.body, operation.document, depth)  # type: ignore[type-var]


_CLAIM = next(operation for operation in OPERATIONS if operation.document is ClaimRequest)


def _refused(problem: Exception, request: Request) -> Refused:
    """Return an error as it is answered; raise one that only the log may show."""
    if isinstance(problem, Refused):
        return problem
    if is_unavailable(problem):
        log.warning(
            "%s %s is answered with 503, and its client must repeat it: the database does not "
            "answer: %s",
            request.method,
            request.path,
            problem,
            extra={"action": "wire_unavailable"},
        )
        return Refused("database_unavailable", "the database does not answer")
    for kind, code in _CODES:
        if isinstance(problem, kind):
            return Refused(code, str(problem))
    raise problem

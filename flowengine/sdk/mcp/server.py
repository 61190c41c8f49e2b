"""Offer the workflows and event facets of a program as tools whose calls are durable runs."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import redirect_stdout, suppress
from importlib.metadata import version
from secrets import compare_digest
from typing import Any

import mcp_types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server

from flowengine.engine import Engine, Run
from flowengine.errors import FlowengineError, ToolRefused, UnknownRun
from flowengine.evaluator.states import RunState
from flowengine.program import Program
from flowengine.sdk.mcp.client import MAX_TEXT, META_KEY
from flowengine.sdk.program_tools import KEY, ProgramTool, tools_of, with_tool_workflows
from flowengine.secret_keys import without_secrets
from flowengine.store.shown_values import readable

GET_RUN = "flowengine_get_run"  #: the tool that looks at a run later
WAIT_SECONDS = 30.0  #: that a call waits for its run
_MAX_WAIT = 3600.0
_MAX_CALLS = 1_000  #: that wait at once


class ProgramServer:
    """The tools of a program, over one engine."""

    def __init__(self, engine: Engine, program: Program, *, wait: float = WAIT_SECONDS) -> None:
        if not 0 <= wait <= _MAX_WAIT:
            reason = f"a call waits between 0 and {_MAX_WAIT:g} seconds, not {wait:g}"
            raise ToolRefused("the program", reason)
        self._engine, self._program, self._wait = engine, with_tool_workflows(program), wait
        self.tools = tools_of(engine.programs.prepare(self._program)[2])
        self._workflows = {tool.workflow for tool in self.tools.values()}
        self._calls = 0
        self.server: Server[Any] = Server(
            "flowengine",
            version=version("flowengine"),
            instructions="Each call is a durable run. If it lasts longer than the call waits, the "
            f"result has its run_id: look at it later with {GET_RUN}.",
            on_list_tools=self._list,
            on_call_tool=self._call,
        )

    async def _list(self, _context: Any, _params: Any) -> types.ListToolsResult:
        listed = [
            types.Tool(
                name=tool.name,
                title=tool.facet,
                description=tool.description,
                input_schema=tool.input_schema,
                output_schema=tool.output_schema,
            )
            for tool in self.tools.values()
        ]
        return types.ListToolsResult(tools=[*listed, _get_run_tool()])

    async def _call(
        self, _context: Any, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        if self._calls >= _MAX_CALLS:
            return _failed({}, f"{_MAX_CALLS} calls wait for their runs; try again later")
        self._calls += 1
        try:
            return await self._answer(params)
        except FlowengineError as problem:
            return _failed({}, f"{type(problem).__name__}: {problem}")
        finally:
            self._calls -= 1

    async def _answer(self, params: types.CallToolRequestParams) -> types.CallToolResult:
        given = dict(params.arguments or {})
        if params.name == GET_RUN:
            return await self._look(given)
        tool = self.tools.get(params.name)
        if tool is None:
            raise ToolRefused(params.name, "the server has no such tool; list its tools")
        key = self._key(tool, given, params.meta)
        run = await self._engine.astart(self._program, tool.workflow, given, key=key)
        return await self._result(run, self._wait)

    def _key(self, tool: ProgramTool, given: dict[str, Any], meta: Any) -> str | None:
        """Take the key of a call out of its arguments, or of its metadata."""
        key = given.pop(KEY, None) if tool.takes_key else None
        if key is None:
            key = dict(meta or {}).get(META_KEY)
        if key is not None and (not isinstance(key, str) or not 0 < len(key) <= 200):
            raise ToolRefused(tool.name, f"{KEY} is a text of 1 to 200 characters")
        return key

    async def _look(self, given: Mapping[str, Any]) -> types.CallToolResult:
        run_id, wait = given.get("run_id"), given.get("wait_seconds", 0)
        if not isinstance(run_id, str):
            raise ToolRefused(GET_RUN, "run_id is the text that a call has returned")
        is_number = isinstance(wait, int | float) and not isinstance(wait, bool)
        if not is_number or not 0 <= wait <= _MAX_WAIT:
            raise ToolRefused(GET_RUN, f"wait_seconds is a number from 0 to {_MAX_WAIT:g}")
        run: Run[Any] = await self._engine.arun(run_id)
        info = await run.ainfo()
        if info.workflow not in self._workflows:  # of another program
            raise UnknownRun(run_id)
        return await self._result(run, wait)

    async def _result(self, run: Run[Any], wait: float) -> types.CallToolResult:
        with suppress(TimeoutError, FlowengineError):  # its state says how it ended
            await run.aoutputs(timeout=wait)
        info = await run.ainfo()
        found: dict[str, Any] = {"run_id": run.id, "state": info.state}
        if info.state == RunState.COMPLETED:
            found["outputs"] = without_secrets(readable(info.outputs) or {})
            return _answered(found, json.dumps(found["outputs"]))
        if info.state not in RunState.FINAL:
            text = f"run {run.id} is {info.state}: look at it later with {GET_RUN}"
            return _answered(found, text)
        error = without_secrets(info.error or {})
        names = ("type", "message", "path")
        found["error"] = {name: error[name] for name in names if name in error}
        return _failed(found, f"run {run.id} is {info.state}: {info.error_text}")


def _get_run_tool() -> types.Tool:
    properties = {
        "run_id": {"type": "string", "description": "Of a run that a call has started."},
        "wait_seconds": {"type": "number", "minimum": 0, "maximum": _MAX_WAIT},
    }
    return types.Tool(
        name=GET_RUN,
        title="Look at a run",
        description="Return the state of a run, and its outputs or its error if it has ended.",
        input_schema={"type": "object", "properties": properties, "required": ["run_id"]},
    )


def _answered(found: dict[str, Any], text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=found)


def _failed(found: dict[str, Any], text: str) -> types.CallToolResult:
    content: list[Any] = [types.TextContent(text=text[:MAX_TEXT])]
    return types.CallToolResult(content=content, structured_content=found or None, is_error=True)


def serve_stdio(engine: Engine, program: Program, *, wait: float = WAIT_SECONDS) -> None:
    """Serve the tools of a program on standard input and output, until input ends."""
    server = ProgramServer(engine, program, wait=wait).server

    async def serve() -> None:
        # Text that steps print is buffered: it would be written when the protocol has ended.
        async with stdio_server() as (read, write), _StdoutToStderr():
            await server.run(read, write, server.create_initialization_options())

    asyncio.run(serve())


class _StdoutToStderr(redirect_stdout[Any]):
    def __init__(self) -> None:
        super().__init__(sys.stderr)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        sys.stderr.flush()  # for the rest of the process: steps may still run


def http_app(
    engine: Engine,
    program: Program,
    *,
    wait: float = WAIT_SECONDS,
    host: str = "127.0.0.1",
    token: str = "",
) -> Any:
    """Return the tools of a program as an ASGI application: streamable HTTP, on the path /mcp.

    With `token`, each request needs it as ``Authorization: Bearer``.
    """
    app = ProgramServer(engine, program, wait=wait).server.streamable_http_app(host=host)
    return _Guarded(app, token) if token else app


def serve_http(
    engine: Engine, program: Program, host: str, port: int, *, wait: float, token: str
) -> None:
    """Serve the tools of a program over HTTP, until a signal ends the process."""
    import uvicorn  # of the package mcp

    app = http_app(engine, program, wait=wait, host=host, token=token)
    uvicorn.run(app, host=host, port=port, log_level="warning")


class _Guarded:
    def __init__(self, app: Any, token: str) -> None:
        self._app, self._expected = app, f"Bearer {token}".encode()

    async def __call__(
        self, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]
    ) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not compare_digest(given, self._expected):
                head = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer")]
                await send({"type": "http.response.start", "status": 401, "headers": head})
                await send({"type": "http.response.body", "body": b"a token is required\n"})
                return
        await self._app(scope, receive, send)

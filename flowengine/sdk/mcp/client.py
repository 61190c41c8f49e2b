"""Use the tools of MCP servers as handlers of event facets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import mcp_types as types
from mcp import Client, MCPError, StdioServerParameters

from flowengine.errors import McpToolFailed, ToolRefused
from flowengine.sdk.tool_registry import ToolRegistry
from flowengine.worker.step_context import current_step

T = TypeVar("T")

META_KEY = "flowengine/idempotencyKey"  #: the key of a call, in its `_meta`
MAX_TEXT = 10_000  #: characters of an error of a tool
_MAX_TOOLS = 1_000  #: that are registered from one server
_CONNECT_SECONDS = 30.0


class McpTools:
    """A connection to an MCP server, made again when it was lost. Shared by all threads."""

    def __init__(self, server: Any, *, timeout: float = 60.0) -> None:
        self._server, self._timeout = server, timeout
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Client | None = None
        self._owner: asyncio.Task[None] | None = None
        self._connecting: asyncio.Lock | None = None

    def tools(self) -> list[types.Tool]:
        """Return the tools of the server."""
        return self._run(self._tools())

    def call(self, name: str, arguments: Mapping[str, Any], key: str = "") -> dict[str, Any]:
        """Call a tool, and return its results by name; raises McpToolFailed."""
        return self._run(self._call(name, dict(arguments), key))

    def close(self) -> None:
        """End the connection, and the process of the server if it is ours."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is None:
            return
        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._disconnect(), loop).result(_CONNECT_SECONDS)
        loop.call_soon_threadsafe(loop.stop)

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._connecting = asyncio.Lock()
                threading.Thread(
                    target=_run_loop, args=(self._loop,), name="flowengine-mcp", daemon=True
                ).start()
            loop = self._loop
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    async def _tools(self) -> list[types.Tool]:
        found: list[types.Tool] = []
        cursor = None
        while len(found) <= _MAX_TOOLS:
            page = await (await self._connected()).list_tools(cursor=cursor)
            found += page.tools
            if not (cursor := page.next_cursor):
                return found
        raise ToolRefused("the server", f"it has more than {_MAX_TOOLS} tools")

    async def _call(self, name: str, arguments: dict[str, Any], key: str) -> dict[str, Any]:
        client = await self._connected()
        meta: Any = {META_KEY: key} if key else None
        try:
            result = await client.call_tool(name, arguments, self._timeout, meta=meta)
        except MCPError as problem:
            await self._disconnect(client)
            raise McpToolFailed(name, str(problem)) from problem
        except Exception as problem:  # its process has ended, or its transport
            await self._disconnect(client)
            reason = f"the server is lost: {type(problem).__name__}: {problem}"
            raise McpToolFailed(name, reason) from problem
        text = "\n".join(c.text for c in result.content if isinstance(c, types.TextContent))
        if result.is_error:
            raise McpToolFailed(name, text[:MAX_TEXT])
        found = result.structured_content
        return dict(found) if isinstance(found, Mapping) else {"result": text}

    async def _connected(self) -> Client:
        assert self._connecting is not None
        async with self._connecting:
            if self._client is None:
                ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
                self._owner = asyncio.create_task(self._own(ready))
                try:
                    self._client = await asyncio.wait_for(ready, _CONNECT_SECONDS)
                except Exception as problem:
                    self._owner.cancel()
                    reason = f"it cannot be reached: {type(problem).__name__}: {problem}"
                    raise McpToolFailed("the server", reason) from problem
            return self._client

    async def _own(self, ready: asyncio.Future[Client]) -> None:
        """Open and close a client in one task, as its task groups need it."""
        try:
            async with Client(self._server) as client:
                if not ready.done():
                    ready.set_result(client)
                await asyncio.Event().wait()
        except Exception as problem:
            if not ready.done():
                ready.set_exception(problem)

    async def _disconnect(self, client: Client | None = None) -> None:
        """Forget the connection; with `client` only if it is still this one."""
        if client is not None and client is not self._client:
            return
        owner, self._client, self._owner = self._owner, None, None
        if owner is not None:
            owner.cancel()
            await asyncio.wait([owner], timeout=5)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    loop.close()


def register_mcp_tools(
    registry: ToolRegistry,
    server: StdioServerParameters | str | Any,
    *,
    prefix: str = "",
    timeout: float = 60.0,
) -> McpTools:
    """Register each tool of an MCP server as the handler of the facet with its name.

    `server` are `mcp.StdioServerParameters`, or the URL of streamable HTTP. A tool ``read-file`` of
    the prefix ``files.`` handles ``files.read_file``. Close the connection that this returns.
    """
    tools = McpTools(server, timeout=timeout)
    try:
        for tool in tools.tools():
            registry.register(prefix + tool.name.replace("-", "_"), _callback(tools, tool.name))
    except BaseException:
        tools.close()
        raise
    return tools


def _callback(tools: McpTools, name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def call(payload: dict[str, Any]) -> dict[str, Any]:
        return tools.call(name, payload, current_step().idempotency_key)

    return call

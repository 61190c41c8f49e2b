"""The Model Context Protocol: the only package that imports the package `mcp`.

`server` offers a program's workflows and event facets as tools whose calls are durable runs.
`client` registers the tools of a server as handlers of event facets.
"""

from __future__ import annotations

from flowengine.errors import MissingExtra

try:
    import mcp  # noqa: F401
    import mcp_types  # noqa: F401
except ModuleNotFoundError as missing:
    raise MissingExtra("the Model Context Protocol", "mcp", "mcp") from missing

from flowengine.sdk.mcp.client import META_KEY, McpTools, register_mcp_tools
from flowengine.sdk.mcp.server import (
    GET_RUN,
    WAIT_SECONDS,
    ProgramServer,
    http_app,
    serve_http,
    serve_stdio,
)

__all__ = [
    "GET_RUN",
    "META_KEY",
    "WAIT_SECONDS",
    "McpTools",
    "ProgramServer",
    "http_app",
    "register_mcp_tools",
    "serve_http",
    "serve_stdio",
]

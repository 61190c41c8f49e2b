"""An MCP server of the official package: tools that answer, fail, and end the process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("peer")


@server.tool(name="add-up")
def add_up(a: int, b: int) -> dict[str, int]:
    return {"total": a + b}


@server.tool()
def fail(text: str) -> str:
    raise ToolError(text)


@server.tool()
def die_once(marker: str) -> dict[str, str]:
    """End the process in the first call: the call is lost."""
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), 9)
    return {"text": "again"}


if __name__ == "__main__":
    server.run(sys.argv[1] if len(sys.argv) > 1 else "stdio")  # type: ignore[call-overload]

"""Workflows as tools of the Model Context Protocol, called by the official client.

    python examples/mcp_server.py

Each call is a durable run: the second call with the same key returns the run of the first. Here
client and server are in one process. `python examples/mcp_server.py serve` serves standard input
and output, which is the command that other clients start.
"""

import asyncio
import sys
from typing import Any

from mcp import Client

from flowengine import event_facet
from flowengine.afl import compile_text
from flowengine.assembly import default_engine
from flowengine.sdk.mcp import ProgramServer, serve_stdio

PROGRAM = compile_text("""
namespace mcp_shop {
  event facet Charge(customer: String, cents: Long) => (receipt: String)

  workflow Order(customer: String, cents: Long) => (receipt: String) andThen {
    paid = Charge(customer = $.customer, cents = $.cents)
    yield Order(receipt = paid.receipt)
  }
}
""")


@event_facet(name="mcp_shop.Charge")
def charge(customer: str, cents: int) -> str:
    if cents <= 0:
        raise ValueError(f"{cents} cents cannot be paid")
    return f"{cents} cents of {customer}"


async def call_tools() -> None:
    async with Client(ProgramServer(default_engine(), PROGRAM).server) as client:
        print("tools:", *sorted(tool.name for tool in (await client.list_tools()).tools))
        order: dict[str, Any] = {"customer": "ada", "cents": 4200, "idempotency_key": "order 7"}
        runs = [await client.call_tool("mcp_shop_Order", order) for _ in range(2)]
        print(runs[0].structured_content["outputs"]["receipt"])
        print("one run:", runs[0].structured_content == runs[1].structured_content)
        failed = await client.call_tool("mcp_shop_Charge", {"customer": "bob", "cents": 0})
        print("failed:", failed.structured_content["error"]["message"])


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve_stdio(default_engine(), PROGRAM)
    else:
        asyncio.run(call_tools())

"""The Model Context Protocol in both directions, with the official client and server."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
import uvicorn
from mcp import Client, StdioServerParameters

from flowengine.afl import compile_text
from flowengine.cli.mcp_command import address_of
from flowengine.engine import Engine
from flowengine.errors import McpToolFailed, MissingExtra, ToolRefused
from flowengine.program import Program
from flowengine.sdk import AgentPoller, ToolRegistry
from flowengine.sdk.mcp import GET_RUN, META_KEY, ProgramServer, http_app, register_mcp_tools
from tests.integration.engines import opened
from tests.integration.sdk.pollers import WAIT, until
from tests.servers import free_port
from tests.warm import warm

PEER = Path(__file__).parent / "mcp_peer.py"
TEXT = """
namespace shop {
  schema Address { street: String, number: Long }
  event facet Charge(customer: String, cents: Long = 100) => (receipt: String)
  event facet Wait(n: Long) => (n: Long)

  workflow Order(customer: String, to: Address, sizes: [Long]) => (receipt: String) andThen {
    paid = Charge(customer = $.customer)
    yield Order(receipt = paid.receipt)
  }
}
"""
CODE = """
import os
from pathlib import Path
from flowengine import event_facet

@event_facet(name="shop.Charge")
def charge(customer: str, cents: int) -> str:
    print("this must not reach the client")
    if customer == "killer" and not Path("killed").exists():
        Path("killed").touch()
        os.kill(os.getpid(), 9)
    if customer == "nobody":
        raise ValueError("nobody pays nothing")
    return f"{cents} of {customer}"
"""


def program() -> Program:
    return compile_text(TEXT)


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    with opened(database_url) as engine:
        yield engine


@pytest.fixture
def shop(tmp_path: Path) -> StdioServerParameters:
    """`flowengine mcp` as a process, with the code of its facets."""
    (tmp_path / "shop.afl").write_text(TEXT)
    (tmp_path / "shop_code.py").write_text(CODE)
    arguments = ["-m", "flowengine", "mcp", "shop.afl", "-m", "shop_code"]
    root = str(Path(__file__).parents[3])
    env = {"FLOWENGINE_DATABASE_URL": f"sqlite:///{tmp_path}/flow.db", "PYTHONPATH": root}
    program, *words = warm("python", *arguments)
    return StdioServerParameters(command=program, args=words, env=env, cwd=str(tmp_path))


# --- offering tools ---


def test_workflows_and_event_facets_are_durable_tools_over_stdio(
    shop: StdioServerParameters,
) -> None:
    async def calls() -> None:
        async with Client(shop) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert sorted(tools) == [GET_RUN, "shop_Charge", "shop_Order", "shop_Wait"]
            schema = tools["shop_Charge"].input_schema
            assert schema["required"] == ["customer"]
            assert schema["properties"]["cents"] == {"type": ["integer", "null"]}
            schema = tools["shop_Order"].input_schema
            (reference, null) = schema["properties"]["to"]["anyOf"]
            (address,) = schema["$defs"].values()
            assert reference["$ref"].rpartition("/")[2] in schema["$defs"]
            assert null == {"type": "null"}
            assert address["required"] == ["street", "number"]

            charged = await client.call_tool("shop_Charge", {"customer": "ada"})
            assert not charged.is_error
            assert charged.structured_content["outputs"] == {"receipt": "100 of ada"}
            order = {"customer": "eva", "to": {"street": "a", "number": 1}, "sizes": [1]}
            first, second = [
                await client.call_tool("shop_Order", {**order, "idempotency_key": "one"})
                for _ in range(2)
            ]
            assert first.structured_content == second.structured_content
            third = await client.call_tool("shop_Order", order, meta={META_KEY: "one"})
            assert third.structured_content == first.structured_content

            failed = await client.call_tool("shop_Charge", {"customer": "nobody"})
            assert failed.is_error
            assert "ValueError: nobody pays nothing" in failed.content[0].text  # type: ignore[union-attr]
            run_id = failed.structured_content["run_id"]
            again = await client.call_tool(GET_RUN, {"run_id": run_id})
            assert again.is_error
            assert again.structured_content["error"]["type"] == "ValueError"

    asyncio.run(asyncio.wait_for(calls(), 60))


@contextmanager
def serving(shop: StdioServerParameters, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """`flowengine mcp --http` as a process."""
    command = [shop.command, *shop.args, "--http", str(port)]
    env = {**os.environ, **(shop.env or {})}
    process = subprocess.Popen(command, env=env, cwd=shop.cwd, stderr=subprocess.DEVNULL)
    try:
        until(lambda: process.poll() is not None or is_open(port))
        yield process
    finally:
        process.kill()
        process.wait()


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def charged_over_http(port: int, customer: str) -> Any:
    async with Client(f"http://127.0.0.1:{port}/mcp") as client:
        given = {"customer": customer, "idempotency_key": "once"}
        return (await client.call_tool("shop_Charge", given)).structured_content


@pytest.mark.chaos
def test_a_call_of_a_killed_http_server_is_completed_by_the_next(
    shop: StdioServerParameters,
) -> None:
    port = free_port()

    def charged(customer: str) -> Any:
        return asyncio.run(asyncio.wait_for(charged_over_http(port, customer), WAIT))

    with serving(shop, port) as server:
        with pytest.raises(BaseException):  # noqa: B017, PT011 - of the client: it is cut off
            charged("killer")
        assert server.wait(WAIT) == -signal.SIGKILL
    with serving(shop, port) as server:
        done = charged("killer")
        assert done["outputs"] == {"receipt": "100 of killer"}
        assert charged("killer") == done
        server.terminate()
        server.wait(WAIT)


def in_process(engine: Engine, wait: float = 0) -> Client:
    return Client(ProgramServer(engine, program(), wait=wait).server)


def test_a_run_that_lasts_longer_is_looked_at_later(engine: Engine) -> None:
    async def calls() -> None:
        async with in_process(engine) as client:
            begun = await client.call_tool("shop_Wait", {"n": 1})
            assert not begun.is_error
            found = begun.structured_content
            assert found["state"] == "RUNNING"
            assert GET_RUN in begun.content[0].text  # type: ignore[union-attr]
            (event,) = await asyncio.to_thread(engine.events, found["run_id"])
            await asyncio.to_thread(engine.continue_step, event.step_id, 5)
            about = {"run_id": found["run_id"], "wait_seconds": 20}
            ended = await client.call_tool(GET_RUN, about)
            assert ended.structured_content["outputs"] == {"n": 5}

    asyncio.run(calls())


@pytest.mark.parametrize(
    ("tool", "given", "message"),
    [
        ("shop_Nothing", {}, "no such tool"),
        ("shop_Charge", {}, "customer"),
        ("shop_Charge", {"customer": 3}, "expected String"),
        ("shop_Charge", {"customer": "a", "other": 1}, "other"),
        ("shop_Charge", {"customer": "a", "idempotency_key": 3}, "1 to 200 characters"),
        ("shop_Charge", {"customer": "a", "idempotency_key": "k" * 201}, "1 to 200 characters"),
        (GET_RUN, {}, "run_id is the text"),
        (GET_RUN, {"run_id": "0" * 32}, "no run"),
        (GET_RUN, {"run_id": "0", "wait_seconds": "long"}, "from 0 to 3600"),
    ],
)
def test_bad_calls_are_errors_of_the_tool_with_their_cause(
    engine: Engine, tool: str, given: dict[str, Any], message: str
) -> None:
    async def call() -> Any:
        async with in_process(engine) as client:
            return await client.call_tool(tool, given)

    failed = asyncio.run(call())
    assert failed.is_error
    assert message in failed.content[0].text
    assert engine.list() == []


def test_a_run_of_another_program_is_not_shown(engine: Engine) -> None:
    text = "namespace other { event facet E() workflow W() andThen { e = E() } }"
    run = engine.start(compile_text(text), "other.W", {})

    async def call() -> Any:
        async with in_process(engine) as client:
            return await client.call_tool(GET_RUN, {"run_id": run.id})

    assert asyncio.run(call()).is_error


def test_names_that_collide_are_refused(engine: Engine) -> None:
    text = "namespace a.b { event facet C() } namespace a { event facet b_C() }"
    with pytest.raises(ToolRefused, match="the same name as a tool, a_b_C"):
        ProgramServer(engine, compile_text(text))
    text = "namespace a { event facet C() event facet CAsTool() }"
    with pytest.raises(ToolRefused, match="declares CAsTool"):
        ProgramServer(engine, compile_text(text))
    with pytest.raises(ToolRefused, match="neither a workflow nor an event facet"):
        ProgramServer(engine, compile_text("namespace a { facet F() }"))
    with pytest.raises(ToolRefused, match="between 0 and 3600"):
        ProgramServer(engine, program(), wait=-1)


def test_http_needs_the_token(engine: Engine) -> None:
    async def status(token: str) -> int:
        app = http_app(engine, program(), token="t" * 32)
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/nowhere",
            "headers": [(b"authorization", token.encode())],
            "query_string": b"",
            "root_path": "",
        }
        await app(scope, receive, send)
        return int(sent[0]["status"])

    assert asyncio.run(status("Bearer " + "x" * 32)) == 401
    assert asyncio.run(status("")) == 401
    assert asyncio.run(status("Bearer " + "t" * 32)) == 404


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("0.0.0.0:8080", "FLOWENGINE_MCP_TOKEN"),
        ("example:8080", "FLOWENGINE_MCP_TOKEN"),
        ("x", "is not [HOST:]PORT"),
        ("70000", "is not [HOST:]PORT"),
    ],
)
def test_an_address_that_others_reach_needs_a_token(address: str, message: str) -> None:
    with pytest.raises(click.ClickException, match=re.escape(message)):
        address_of(address, has_token=False)
    assert address_of("8080", has_token=False) == ("127.0.0.1", 8080)
    assert address_of("[::1]:80", has_token=False) == ("::1", 80)
    assert address_of("0.0.0.0:80", has_token=True) == ("0.0.0.0", 80)


# --- using tools ---


@pytest.fixture
def registry() -> ToolRegistry:
    return ToolRegistry()


@pytest.fixture
def tools(registry: ToolRegistry) -> Iterator[Any]:
    program, *words = warm("python", PEER)
    server = StdioServerParameters(command=program, args=words)
    tools = register_mcp_tools(registry, server, prefix="peer.")
    yield tools
    tools.close()


def test_tools_of_a_server_handle_event_facets(
    engine: Engine, registry: ToolRegistry, tools: Any, tmp_path: Path
) -> None:
    assert registry.registered_names() == ["peer.add_up", "peer.die_once", "peer.fail"]
    text = """
    namespace peer {
      event facet add_up(a: Long, b: Long) => (total: Long)
      event facet fail(text: String) => (text: String)
      event facet die_once(marker: String) => (text: String)
      workflow Sum(a: Long) => (total: Long) andThen {
        sum = add_up(a = $.a, b = 2)
        yield Sum(total = sum.total)
      }
      workflow Fails() => (text: String) andThen {
        failed = fail(text = "no")
        yield Fails(text = failed.text)
      }
      workflow Dies(marker: String) => (text: String) andThen {
        once = die_once(marker = $.marker)
        yield Dies(text = once.text)
      }
    }
    """
    poller = AgentPoller(engine)
    for name in registry.registered_names():
        poller.register(name, registry.find(name).callback)  # type: ignore[union-attr]
    ast = compile_text(text)
    run = engine.start(ast, "peer.Sum", {"a": 1})
    poller.poll_once()
    assert run.outputs(timeout=0) == {"total": 3}
    failed = engine.start(ast, "peer.Fails", {})
    poller.poll_once()
    error = failed.info().error or {}
    assert error["type"] == "McpToolFailed"
    assert "no" in error["message"]
    # The server is killed in the middle of a call, and started again for the next try.
    lost = engine.start(ast, "peer.Dies", {"marker": str(tmp_path / "died")})
    poller.poll_once()
    assert (lost.info().error or {})["type"] == "McpToolFailed"
    lost.retry()
    poller.poll_once()
    assert lost.outputs(timeout=0) == {"text": "again"}


@contextmanager
def served(app: Any) -> Iterator[str]:
    """An ASGI application on a port of its own; yields its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.should_exit = True
        thread.join(WAIT)


def test_a_call_between_two_engines_over_http_is_one_run(
    engine: Engine, registry: ToolRegistry
) -> None:
    """The key of the step goes with each try: the second one gets the run of the first."""
    with served(http_app(engine, program(), wait=0)) as url:
        tools = register_mcp_tools(registry, url, prefix="far.")
        try:
            first, second = (tools.call("shop_Wait", {"n": 1}, "the step") for _ in range(2))
            assert first == second
            assert first["state"] == "RUNNING"
            assert len(engine.list()) == 1
            with pytest.raises(McpToolFailed, match="expected Long"):
                tools.call("shop_Wait", {"n": "one"}, "")
        finally:
            tools.close()
    assert "far.shop_Wait" in registry.registered_names()


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "flowengine.sdk.mcp")
    monkeypatch.setitem(sys.modules, "mcp_types", None)
    with pytest.raises(MissingExtra, match=r"pip install 'flowengine\[mcp\]'"):
        importlib.import_module("flowengine.sdk.mcp")


def test_a_server_that_cannot_be_started_is_an_error(registry: ToolRegistry) -> None:
    server = StdioServerParameters(command=sys.executable, args=["-c", "pass"])
    with pytest.raises(McpToolFailed, match="cannot be reached"):
        register_mcp_tools(registry, server)
    assert registry.registered_names() == []

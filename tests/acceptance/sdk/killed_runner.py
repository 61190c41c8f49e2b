"""A runner whose model calls three tools, for tests that kill it."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

from flowengine.afl import compile_text
from flowengine.engine import Engine
from flowengine.models import Answer, Anthropic, Model, ModelRequest, ScriptedModel, calling
from flowengine.models.messages import ToolResult
from flowengine.sdk import ClaudeAgentRunner, ToolRegistry
from flowengine.settings import Settings
from flowengine.store import Database, ensure_schema
from flowengine.store.postgres import database as postgres_database
from flowengine.store.postgres.database import PostgresDatabase
from flowengine.store.sqlite.database import SqliteDatabase
from tests.acceptance.thirty_steps import kill_at

PROGRAM = compile_text(
    """
namespace shelf {
  event facet Count(kind: String) => (number: Long)
  event facet Sum(goal: String) => (total: Long) prompt { template "{goal}" model "claude-x" }
  event facet Print(total: Long) => (page: String)

  workflow Stock(goal: String) => (page: String) andThen {
    sum = Sum(goal = $.goal)
    printed = Print(total = sum.total)
    yield Stock(page = printed.page)
  }
}
""",
    "shelf.afl",
)
KINDS = ("kettles", "cups", "spoons")
PAGE = "there are 18"
DYING = "dying"


def next_answer(results: int) -> Answer:
    """The answer to a request that has `results` results of tools."""
    if results < len(KINDS):
        kind = KINDS[results]
        return calling("shelf__Count", f"call_{kind}", kind=kind)
    return calling("submit_result", total=18)


def _note(file: str, line: str) -> None:
    with Path(file).open("a") as opened:
        opened.write(f"{line}\n")


def run_and_die(
    url: str, directory: str, commits: int, moment: str, base_url: str = "", host: str = ""
) -> None:
    """Drive the run; kill this process at its n-th commit. 0: let it live.

    With `host`, as the machine of that name, which has a spool of its own; the machine `DYING`
    is killed in the call of a tool, after the answer that asks for it is recorded.
    """
    # Neither heartbeats nor readings of the server's clock are among the commits that are counted:
    # on a busy machine one falls into a request, whose answer is lost with the process.
    settings = Settings(
        spool_directory=f"{directory}/spool", heartbeat_interval=300, server_timeout=900
    )
    postgres_database._CLOCK_TRUST = 3_600.0
    if host:
        socket.gethostname = lambda: host
        settings = Settings(
            spool_directory=f"{directory}/{host}", server_timeout=1.5, heartbeat_interval=0.3
        )
    database = Database(url)
    ensure_schema(database, upgrade=True)
    if commits:
        kind: Any = PostgresDatabase if database.has_server else SqliteDatabase
        kill_at(kind, commits, moment)

    def count(payload: dict[str, Any]) -> dict[str, Any]:
        if host == DYING:
            os.kill(os.getpid(), signal.SIGKILL)
        _note(f"{directory}/tools", payload["kind"])
        return {"number": len(payload["kind"])}

    def answer(request: ModelRequest) -> Answer:
        _note(f"{directory}/asked", str(os.getpid()))
        parts = [part for message in request.messages for part in message.content]
        return next_answer(sum(isinstance(part, ToolResult) for part in parts))

    tools = ToolRegistry()
    tools.register("shelf.Count", count)
    tools.register("shelf.Print", lambda payload: {"page": f"there are {payload['total']}"})
    model: Model = (
        Anthropic(api_key="the-key", base_url=base_url) if base_url else ScriptedModel(answer)
    )
    engine = Engine(database, settings=settings)
    result = ClaudeAgentRunner(engine, tools, model).run(PROGRAM, {"goal": "sum"}, key="the one")
    assert result.outputs == {"page": PAGE}, result
    engine.close()

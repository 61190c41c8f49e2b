"""A turn of three steps, three parallel tools and a child agent, for tests that kill it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from flowengine import event_facet
from flowengine.agents import agent, tool
from flowengine.models import Answer, ModelRequest, ScriptedModel, ToolCall
from flowengine.models.messages import StopReason, Usage
from flowengine.store.postgres.database import PostgresDatabase
from flowengine.store.sqlite.database import SqliteDatabase
from flowengine.worker.in_place_policy import InPlacePolicy
from tests.acceptance.thirty_steps import kill_at

RESULT = "one two three / 6 letters"
MODEL_CALLS = 4  # three of the clerk, one of the counter
TOOL_CALLS = 4
_SECONDS = 60


def _note(line: str) -> None:
    """Record a call outside the database: appended in one write, so it survives the kill."""
    with Path(os.environ["CALLS_FILE"]).open("a") as file:
        file.write(f"{line}\n")


def _answer(*calls: ToolCall) -> Answer:
    return Answer(calls, StopReason.TOOL_CALLS, Usage(10, 5), "scripted")


def _clerk_script(request: ModelRequest) -> Answer | str:
    results = [m for m in request.messages if m.role == "tool"]
    _note(f"model clerk {len(results)}")
    if not results:
        return _answer(*(ToolCall(f"c{n}", "look_up", {"number": n}) for n in (1, 2, 3)))
    found = " ".join(part.content for part in results[0].content)  # type: ignore[union-attr]
    if len(results) == 1:
        return _answer(ToolCall("c1", "counter", {"text": found}))
    return f"{found} / {results[1].content[0].content}"  # type: ignore[union-attr]


def _counter_script(request: ModelRequest) -> str:
    _note("model counter")
    return "6 letters"


@event_facet(name="asked_clerk.look_up")
def look_up(number: int) -> str:
    """Look up a word."""
    _note(f"tool {number}")
    return ["one", "two", "three"][number - 1]


@event_facet(name="asked_clerk.read_word", effects=False)
def read_word(number: int) -> str:
    """Look up a word; nothing else is changed by it."""
    return look_up.fn(number)


@agent(model=ScriptedModel(_counter_script), name="asked_clerk.counter")
def counter(text: str) -> str:
    """You count letters."""
    return f"Count: {text}"


@agent(model=ScriptedModel(_clerk_script), tools=[look_up, counter], name="asked_clerk.clerk")
def clerk(ticket: str) -> str:
    """You settle complaints."""
    return f"Settle this: {ticket}"


@agent(
    model=ScriptedModel(_clerk_script),
    tools=[tool(read_word, name="look_up"), counter],
    name="asked_clerk.reader",
)
def reader(ticket: str) -> str:
    """You settle complaints, with tools that only read."""
    return f"Settle this: {ticket}"


def send_and_die(
    url: str, commits: int, moment: str, calls: str = "", *, reads: bool = False
) -> None:
    """Send a message and wait for its result; die at the n-th commit. 0: live.

    With `reads` the message goes to an agent without a name, whose tools are called in place.
    """
    os.environ["CALLS_FILE"] = calls
    os.environ["FLOWENGINE_DATABASE_URL"] = url
    os.environ["FLOWENGINE_CONCURRENCY"] = "2"
    os.environ["FLOWENGINE_WATCHDOG_INTERVAL"] = "0.05"
    if commits:
        kill_at(SqliteDatabase if url.startswith("sqlite") else PostgresDatabase, commits, moment)
    if reads:
        InPlacePolicy.is_made_here = lambda *_: True  # type: ignore[method-assign]
    agent_ = reader.at("") if reads else clerk.at("ada")
    turn = agent_.options(key="mail-17").send("The kettle leaks")
    result = turn.result(timeout=_SECONDS)
    assert result == RESULT, result
    print(result)
    sys.stdout.flush()

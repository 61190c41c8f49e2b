"""A clerk with a tool and an assistant, for workers that are killed and lose messages."""

from __future__ import annotations

import os
import time
from pathlib import Path

from flowengine import event_facet
from flowengine.agents import agent
from flowengine.models import Answer, ModelRequest, ScriptedModel, ToolCall
from flowengine.models.messages import StopReason, Usage

STEPS = 3  #: model calls of a clerk's turn


def _note(name: str) -> None:
    """Count a call outside the database."""
    (Path(os.environ["TRACES"]) / f"{name}-{os.getpid()}-{time.monotonic_ns()}").touch()


def hold(name: str) -> None:
    """Leave a file, then wait until another file allows it to end."""
    directory = Path(os.environ["TRACES"])
    (directory / f"begun-{name}-{os.getpid()}").touch()
    while not (directory / f"go-{name}").exists():
        time.sleep(0.01)


def _answer(*calls: ToolCall) -> Answer:
    return Answer(calls, StopReason.TOOL_CALLS, Usage(10, 5), "scripted")


def _own(request: ModelRequest) -> list[list[str]]:
    """The results of this turn: those behind its instruction, the last message of a user."""
    last = max(at for at, m in enumerate(request.messages) if m.role == "user")
    return [
        [part.content for part in message.content]  # type: ignore[union-attr]
        for message in request.messages[last:]
        if message.role == "tool"
    ]


def _clerk(request: ModelRequest) -> Answer | str:
    _note("model-clerk")
    time.sleep(0.02)
    results = _own(request)
    if not results:
        calls = [ToolCall(f"c{n}", "look_up", {"number": n}) for n in (1, 2, 3)]
        return _answer(*calls)
    if len(results) == 1:
        return _answer(ToolCall("c0", "counter", {"text": " ".join(results[0])}))
    return f"{' '.join(results[0])}: {results[1][0]}"


def _counter(request: ModelRequest) -> str:
    _note("model-counter")
    return str(len(request.messages[-1].text.split()))


@event_facet(name="busy_office.look_up", task_list="tools", max_losses=1000)
def look_up(number: int) -> str:
    """Look up a word."""
    time.sleep(0.01)
    return ["one", "two", "three"][number - 1]


@agent(
    model=ScriptedModel(_counter), name="busy_office.counter", task_list="models", max_losses=1000
)
def counter(text: str) -> str:
    """You count words."""
    return text


@agent(
    model=ScriptedModel(_clerk),
    tools=[look_up, counter],
    name="busy_office.clerk",
    task_list="models",
    max_losses=1000,
)
def clerk(ticket: str) -> str:
    """You settle complaints."""
    return f"Settle this: {ticket}"


def _patient(request: ModelRequest) -> str:
    hold(request.messages[-1].text)
    return f"answered by {os.getpid()}"


@agent(
    model=ScriptedModel(_patient), name="busy_office.patient", task_list="models", max_losses=1000
)
def patient(name: str) -> str:
    """Your model waits until the test lets it answer."""
    return name


RESULT = "one two three: 3"

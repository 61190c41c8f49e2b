"""Agents of flowengine that a Celery worker with two pool children runs.

The tool adds one. It is declared twice: as one that only reads, and as one with effects.
"""

from __future__ import annotations

from benchmarks.agent_flows import model, tool
from flowengine import event_facet
from flowengine.agents import agent
from flowengine.agents import tool as as_tool
from flowengine.models import Answer, ModelRequest, ScriptedModel, ToolCall
from flowengine.models.messages import StopReason, Usage


def _script(request: ModelRequest) -> Answer | str:
    results = sum(message.role == "tool" for message in request.messages)
    turn = next(m.text for m in request.messages if m.role == "user")
    text = model(turn, results)
    if text is not None:
        return text
    call = ToolCall(f"c{results}", "add_one", {"number": results})
    return Answer((call,), StopReason.TOOL_CALLS, Usage(10, 5), "scripted")


@event_facet(name="bench.add_one", effects=False)
def add_one(number: int) -> int:
    """Add one."""
    return tool(number)


@event_facet(name="bench.add_one_with_effects")
def add_one_with_effects(number: int) -> int:
    """Add one."""
    return tool(number)


@agent(model=ScriptedModel(_script), tools=[add_one], name="bench.counter")
def counter(turn: str) -> str:
    """You count."""
    return turn


@agent(
    model=ScriptedModel(_script),
    tools=[as_tool(add_one_with_effects, name="add_one")],
    name="bench.counter_with_effects",
)
def counter_with_effects(turn: str) -> str:
    """You count."""
    return turn

"""Agents of these tests: a clerk that asks a person, one that only talks, and slow tools."""

from __future__ import annotations

from pydantic import BaseModel

from flowengine import Budget, Retry, agent, current_step, event_facet, tool, wait_for, workflow
from flowengine.models import ModelRequest
from flowengine.models.messages import Answer, StopReason, ToolCall, ToolResult, Usage
from flowengine.testing import ScriptedModel, calling


class Verdict(BaseModel):
    approve: bool
    reason: str


@event_facet(name="clerks.search")
def search(query: str) -> list[str]:
    """Search the archive."""
    return [f"{query} 1", f"{query} 2"]


@event_facet(name="clerks.refund")
def refund(cents: int) -> str:
    """Pay money back."""
    return f"refunded {cents}"


@event_facet(name="clerks.flaky", retry=Retry(attempts=3, first_wait=100, max_wait=100))
def flaky() -> str:
    """Answer at the third try."""
    if current_step().try_number < 3:
        raise ConnectionError("not yet")
    return "at last"


@workflow(name="clerks.ask_somebody")
def ask_somebody() -> str:
    """Ask a person, who may never answer."""
    return wait_for("anything", str)


def results(request: ModelRequest) -> list[str]:
    """The results of the calls of the newest message, in order."""
    last = request.messages[-1]
    return [part.content for part in last.content if isinstance(part, ToolResult)]


def both(request: ModelRequest) -> Answer | str:
    """Search and pay back at once, then deliver."""
    if found := results(request):
        return calling("submit_result", approve=True, reason=found[-1])
    calls = (
        ToolCall("a", "search", {"query": "kettle"}),
        ToolCall("b", "refund", {"cents": 4200}),
    )
    return Answer(calls, StopReason.TOOL_CALLS, Usage(10, 5), "scripted")


@agent(model=ScriptedModel(both), tools=[search, tool(refund, approval=True)], name="clerks.clerk")
def clerk(ticket: str) -> Verdict:
    """You settle complaints."""
    return f"Settle this: {ticket}"


@agent(model=ScriptedModel(lambda request: "good day"), name="clerks.greeter")
def greeter(name: str) -> str:
    """You greet."""
    return f"Greet {name}"


def call_once(name: str) -> ScriptedModel:
    """A model that calls one tool, then says what it heard."""
    return ScriptedModel(lambda request: "; ".join(results(request)) or calling(name))


@agent(model=call_once("flaky"), tools=[flaky], name="clerks.patient")
def patient() -> str:
    """You wait."""
    return "Try."


@agent(
    model=call_once("ask_somebody"), tools=[tool(ask_somebody, timeout=3600)], name="clerks.asker"
)
def asker() -> str:
    """You ask."""
    return "Ask."


@agent(
    model=call_once("ask_somebody"),
    tools=[tool(ask_somebody, timeout=3600)],
    budget=Budget(seconds=60),
    name="clerks.hasty",
)
def hasty() -> str:
    """You have a minute."""
    return "Ask."


@workflow(name="clerks.greet")
def greet(name: str) -> str:
    return greeter(name)

"""Errors of the agent SDK: handlers, pollers, runners, tools and tokens."""

from __future__ import annotations

from dataclasses import dataclass

from flowengine.errors.flowengine_error import FlowengineError
from flowengine.printable import printable


@dataclass(eq=False, repr=False)
class HandlerRefused(FlowengineError, ValueError):
    """A handler cannot be registered."""

    name: object
    reason: str
    _text = "the handler of {name!r} cannot be registered: {reason}"


@dataclass(eq=False, repr=False)
class PollerRefused(FlowengineError, RuntimeError):
    """A poller cannot do this in its present state."""

    reason: str
    _text = "{reason}"


@dataclass(eq=False, repr=False)
class RunnerRefused(FlowengineError, ValueError):
    """A runner cannot be made or used like this."""

    reason: str
    _text = "{reason}"


@dataclass(eq=False, repr=False)
class WorkflowNotServed(FlowengineError, LookupError):
    """A request asks for a workflow that the runner which claimed it does not have."""

    name: str
    known: list[str]

    def __str__(self) -> str:
        known = printable(", ".join(self.known)) or "none"
        return (
            f"this runner has no workflow {self.name!r}; it has: {known}. Give its module or its "
            "program to each runner of the task list, or give the program to enqueue_execute; the "
            "request is tried again some times, and then by flowengine retry"
        )


@dataclass(eq=False, repr=False)
class EventRefused(FlowengineError, ValueError):
    """An event does not take this in its state."""

    event: str
    reason: str
    _text = "event {event}: {reason}"


@dataclass(eq=False, repr=False)
class ToolRefused(FlowengineError, ValueError):
    """A facet cannot be offered as a tool, or a call of a tool cannot be accepted."""

    name: str
    reason: str
    _text = "tool {name}: {reason}"


@dataclass(eq=False, repr=False)
class McpToolFailed(FlowengineError, RuntimeError):
    """The tool of an MCP server answered with an error, or the server was lost."""

    name: str
    reason: str
    _text = "MCP tool {name}: {reason}"


@dataclass(eq=False, repr=False)
class TokenRefused(FlowengineError, ValueError):
    """An access token cannot be created or revoked so."""

    name: str
    reason: str
    _text = "access token {name!r}: {reason}"

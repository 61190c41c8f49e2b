"""Errors of agents and their turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flowengine.errors.flowengine_error import FlowengineError


@dataclass(eq=False, repr=False)
class TurnRefused(FlowengineError):
    """An agent does not take a message."""

    agent: str
    code: str
    reason: str
    _text = "agent {agent!r} does not take the message ({code}): {reason}"


class AgentBusy(FlowengineError):
    """The agent works on another message, and the caller does not want to wait."""

    def __init__(self, agent: str, turn_id: str) -> None:
        super().__init__(agent, turn_id)
        self.agent, self.turn_id, self.code = agent, turn_id, "busy"

    def __str__(self) -> str:
        return (
            f"agent {self.agent!r} works on turn {self.turn_id}; "
            'send the message with when_busy="queue" or "interrupt", or later'
        )


@dataclass(eq=False, repr=False)
class TurnFailed(FlowengineError):
    """A turn has ended without success; `deliverable` is the result it has left."""

    turn_id: str
    status: str
    code: str
    message: str
    deliverable: Any = None
    _text = "turn {turn_id} ended as {status} ({code}): {message}"


@dataclass(eq=False, repr=False)
class UnknownTurn(FlowengineError, LookupError):
    """There is no such turn in this project."""

    turn_id: str
    _text = "there is no turn {turn_id!r}; `flowengine turns` lists them"


@dataclass(eq=False, repr=False)
class AmbiguousTurn(FlowengineError, LookupError):
    """Several turn ids start with that prefix."""

    beginning: str
    _text = (
        "several turn ids start with {beginning!r}, or agents of several projects have this name: "
        "give a longer prefix, or --project"
    )


@dataclass(eq=False, repr=False)
class CallRefused(FlowengineError):
    """A report or a decision does not fit the call that it names."""

    turn_id: str
    call_id: str
    reason: str
    _text = "call {call_id!r} of turn {turn_id} takes no such report: {reason}"

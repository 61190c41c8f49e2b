"""Agents: turns with an inbox, an epoch and a deliverable."""

from flowengine.agents.definitions import (
    AgentFacet,
    Budget,
    agent,
    instruction,
)
from flowengine.agents.handles import TurnHandle
from flowengine.agents.join_models import JoinOutcome, JoinResult, JoinTask
from flowengine.agents.joins import fork_join
from flowengine.agents.runtime import Agents, agents_of
from flowengine.agents.tools import ToolOptions, tool
from flowengine.agents.turn_call import TurnCall

__all__ = [
    "AgentFacet",
    "Agents",
    "Budget",
    "JoinOutcome",
    "JoinResult",
    "JoinTask",
    "ToolOptions",
    "TurnCall",
    "TurnHandle",
    "agent",
    "agents_of",
    "fork_join",
    "instruction",
    "tool",
]

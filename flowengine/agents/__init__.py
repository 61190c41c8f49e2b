"""Agents: turns with an inbox, an epoch and a deliverable."""

from flowengine.agents.definitions import (
    AgentFacet,
    Budget,
    TurnCall,
    agent,
    instruction,
)
from flowengine.agents.handles import TurnHandle
from flowengine.agents.runtime import Agents, agents_of
from flowengine.agents.tools import ToolOptions, tool

__all__ = [
    "AgentFacet",
    "Agents",
    "Budget",
    "ToolOptions",
    "TurnCall",
    "TurnHandle",
    "agent",
    "agents_of",
    "instruction",
    "tool",
]

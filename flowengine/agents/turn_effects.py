"""The consequences of a commit of agents that are handled after it."""

from __future__ import annotations

from dataclasses import dataclass, field

from flowengine.engine.staging import AgentKey, CommitEffects
from flowengine.engine.start_request import StartRequest


@dataclass
class TurnEffects:
    """Runs that were started, runs and agents that have got messages, turns that ended."""

    requests: list[StartRequest] = field(default_factory=list)
    commits: list[CommitEffects] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)  #: that have got a fact
    agents: list[AgentKey] = field(default_factory=list)  #: that have got a message
    ended: list[str] = field(default_factory=list)  #: turns
    has_more: bool = False  #: the inbox may hold more

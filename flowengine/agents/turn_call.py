"""The turn that a step waits for, as its event facet returns it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from flowengine.agents.profiles import Profile
from flowengine.program.nodes import Json

_OPTIONAL = ("clone_of", "context_box_id", "join")


@dataclass(frozen=True, slots=True)
class TurnCall:
    """Returned by an asked agent inside a step: the turn that the step waits for."""

    profile: Profile
    instruction: str
    agent_id: str  #: empty: an agent of the step's own
    clone_of: str = ""  #: the agent whose memory the step's own agent begins with
    context_box_id: str = ""  #: a box whose cards are put before the instruction
    join: str = ""  #: the join that the turn belongs to, and that may end before it is enqueued

    def to_json(self) -> dict[str, Json]:
        known: dict[str, Json] = {name: getattr(self, name) for name in _OPTIONAL}
        given = {name: value for name, value in known.items() if value}
        profile = self.profile.to_json()
        own: dict[str, Json] = {"profile": profile, "instruction": self.instruction}
        return {**own, "agent_id": self.agent_id, **given}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        given = {name: str(value[name]) for name in _OPTIONAL if name in value}
        profile = Profile.from_json(value["profile"])
        return cls(profile, value["instruction"], value["agent_id"], **given)

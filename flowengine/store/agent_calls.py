"""The call of an agent that a run belongs to, as the run's row has it."""

from __future__ import annotations

import json
from typing import NamedTuple, Self


class AgentCall(NamedTuple):
    """Where the end of a run is reported: the message for an agent's inbox."""

    agent_id: str
    message_type: str  #: model_result or tool_result
    correlation_id: str  #: the id of the call
    turn_id: str
    epoch: int  #: of the head when the call was started

    def written(self) -> str:
        return json.dumps(self)

    @classmethod
    def read(cls, text: str) -> Self:
        return cls(*json.loads(text))

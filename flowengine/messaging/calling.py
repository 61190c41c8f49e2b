"""Scripts for one agent."""

from __future__ import annotations

from flowengine.messaging.driving import Argument, Call
from flowengine.messaging.keys import Keys, endpoint
from flowengine.messaging.models import AgentId
from flowengine.messaging.scripting import Script

#: Most messages that one script handles: nobody else is served meanwhile.
MOST_AT_ONCE = 500

RECOVER = Script.load("recover")


class Calling:
    """Calls of scripts with the keys of an agent, which are made once."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self._made: dict[tuple[str, str, str | None], tuple[bytes, ...]] = {}

    def call(self, script: Script, agent_id: AgentId, *arguments: Argument) -> Call:
        asked = (script.name, agent_id.type, agent_id.instance)
        made = self._made.get(asked)
        if made is None:
            if len(self._made) > 10_000:  # agents come and go
                self._made.clear()
            made = self._made[asked] = self.keys.named(script.keys, endpoint(agent_id))
        return Call(script, made, arguments)

    def recover(self, agent_id: AgentId) -> Call:
        """Make what has expired available, or a dead letter."""
        return self.call(RECOVER, agent_id, endpoint(agent_id), MOST_AT_ONCE)

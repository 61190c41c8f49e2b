"""Calls of Lua scripts for one agent."""

from __future__ import annotations

from flowengine.messaging.drivers import Argument, Call
from flowengine.messaging.keys import Keys, endpoint
from flowengine.messaging.lua import Script
from flowengine.messaging.models import AgentId

#: Limit of messages in one script call: Redis serves no other client while a script runs.
BATCH_LIMIT = 500

RECOVER = Script.load("recover")

#: Limit of cached key tuples.
_CACHE_SIZE = 10_000


class ScriptCalls:
    """Builds calls with the keys of an agent, which are cached."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self._cache: dict[tuple[str, str, str | None], tuple[bytes, ...]] = {}

    def call(self, script: Script, agent_id: AgentId, *arguments: Argument) -> Call:
        cache_key = (script.name, agent_id.type, agent_id.instance)
        keys = self._cache.get(cache_key)
        if keys is None:
            if len(self._cache) > _CACHE_SIZE:
                self._cache.clear()
            keys = self._cache[cache_key] = self.keys.named(script.keys, endpoint(agent_id))
        return Call(script, keys, arguments)

    def recover(self, agent_id: AgentId) -> Call:
        """Return messages with an expired reservation to the queue, or make them dead letters."""
        return self.call(RECOVER, agent_id, endpoint(agent_id), BATCH_LIMIT)

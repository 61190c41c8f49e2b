"""The keys in Redis, and calls of scripts with them.

All start with the prefix. In a Redis Cluster a script may use keys of one slot only: there the
prefix must be a hash tag, for example ``{ao}``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote

from flowengine.messaging.lua import Argument, Call, Script
from flowengine.messaging.models import AgentId, MessagePriority

#: Limit of messages in one script call: Redis serves no other client while a script runs.
BATCH_LIMIT = 500
#: Limit of cached key tuples.
_CACHE_SIZE = 10_000
_RECOVER = Script.load("recover")

_PATTERNS = {
    # Of an agent
    "queue": "queue:{}",  # list: ids of all unsettled messages, the oldest first
    "messages": "messages:{}",  # hash: id to stored message
    "tries": "tries:{}",  # hash: id to failed attempts and last error
    "high": "sched:{}:prio:" + str(MessagePriority.HIGH.value),  # sorted set: id by due time
    "normal": "sched:{}:prio:" + str(MessagePriority.NORMAL.value),
    "low": "sched:{}:prio:" + str(MessagePriority.LOW.value),
    "expiries": "expiries:{}",  # sorted set: id by expiry
    "reserved": "reserved:{}",  # hash: token to attempts and id
    "deadlines": "reserved_deadlines:{}",  # sorted set: token by deadline
    "seen": "seen:{}",  # sorted set: acknowledged id by end of the deduplication window
    "dlq": "dlq:{}",  # list: ids of dead letters, the oldest first
    "dead": "dead:{}",  # hash: id to dead letter
    "meta": "meta:{}",  # hash: subscribed types, flags, and the fairness counter
    "subs": "subs:{}",  # set: subscribed types
    "subscriptions": "subscriptions:{}",  # hash: subscription to its types
    "waiting": "waiting:{}",  # exists while a receiver waits
    "wakeup": "wakeup:{}",  # list: each element wakes one waiting receiver
    "agent": "agents:{}",  # JSON: registry record; expires after the last heartbeat
    "capabilities": "capabilities:{}",  # JSON: list
    # Of a correlation id or a circuit breaker
    "awaited": "awaited:{}",
    "answer": "answer:{}",
    "answer_wakeup": "answer_wakeup:{}",
    "circuit": "cb:state:{}",
    "probes": "cb:probes:{}",
    # One for all
    "config": "config",  # hash: values set by `configure`
    "endpoints": "endpoints",  # set: endpoints that may have messages
    "agents_index": "agents:index",  # set: keys of all agents
    "capabilities_index": "capabilities:index",
    "beats": "agents:beats",  # sorted set: endpoint by the end of its ttl
    "lost": "agents:lost",  # set: endpoints published as lost
    "names": "agents:names",  # hash: endpoint to its fields in events
    "circuits": "cb:registry",  # set: names of all circuit breakers
}


@lru_cache(maxsize=10_000)
def endpoint(agent: AgentId) -> str:
    """The part of a key that identifies an agent, with special characters escaped."""
    return f"{name_of(agent.type)}:{name_of(agent.instance or 'default')}"


def agent_of(endpoint: str) -> AgentId:
    kind, _, instance = endpoint.partition(":")
    return AgentId(
        type=unquote(kind), instance=None if instance == "default" else unquote(instance)
    )


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys under one prefix."""

    prefix: str

    def named(self, names: Iterable[str], name: str) -> tuple[bytes, ...]:
        """The keys of a script for an endpoint or a name."""
        return tuple(f"{self.prefix}:{_PATTERNS[key].format(name)}".encode() for key in names)


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
        return self.call(_RECOVER, agent_id, endpoint(agent_id), BATCH_LIMIT)


def name_of(text: str) -> str:
    """Escape a text for use in a key."""
    # Percent-encode only the separators of keys and hash tags: the rest stays readable.
    for character, escaped in (("%", "%25"), (":", "%3A"), ("{", "%7B"), ("}", "%7D")):
        text = text.replace(character, escaped)
    return text

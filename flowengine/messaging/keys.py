"""The names of everything that is kept in Redis.

All begin with the prefix. In a Redis Cluster a script may only touch keys of one slot; there
the prefix has to be a hash tag, ``{ao}``, which puts them all into one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote

from flowengine.messaging.models import AgentId, MessagePriority

_OF_AN_AGENT = {
    "queue": "queue:{}",  # list: the id of every message that is not settled, as they came
    "messages": "messages:{}",  # hash: id to the message itself
    "tries": "tries:{}",  # hash: id to the attempts that failed and the last error
    "high": "sched:{}:prio:" + str(MessagePriority.HIGH.value),  # sorted set: id by due time
    "normal": "sched:{}:prio:" + str(MessagePriority.NORMAL.value),
    "low": "sched:{}:prio:" + str(MessagePriority.LOW.value),
    "expiries": "expiries:{}",  # sorted set: id by the time at which it expires
    "reserved": "reserved:{}",  # hash: token to attempts and id
    "deadlines": "reserved_deadlines:{}",  # sorted set: token by deadline
    "seen": "seen:{}",  # sorted set: id of what was acknowledged by when to forget it
    "dlq": "dlq:{}",  # list: the id of every dead letter, as they died
    "dead": "dead:{}",  # hash: id to the dead letter itself
    "meta": "meta:{}",  # hash: what every operation asks for: types, turns
    "subs": "subs:{}",  # set: the types that the agent takes
    "subscriptions": "subscriptions:{}",  # hash: subscription to its types
    "waiting": "waiting:{}",  # there while somebody waits for a message
    "bell": "bell:{}",  # list: one element for each waiting receiver to wake
    "agent": "agents:{}",  # JSON: what the registry knows; gone some time after the last beat
    "capabilities": "capabilities:{}",  # JSON: a list
}
_OF_A_NAME = {
    "awaited": "awaited:{}",
    "answer": "answer:{}",
    "answer_bell": "answer_bell:{}",
    "circuit": "cb:state:{}",
    "probes": "cb:probes:{}",
}
_OF_ALL = {
    "config": "config",  # hash: what `configure` set
    "endpoints": "endpoints",  # set: agents that may have messages
    "agents_index": "agents:index",  # set: the keys of all agents
    "capabilities_index": "capabilities:index",
    "beats": "agents:beats",  # sorted set: agent by when it is lost
    "lost": "agents:lost",  # set: agents that were told to be lost
    "names": "agents:names",  # hash: agent to how events name it
    "circuits": "cb:registry",  # set: the names of all breakers
}


@lru_cache(maxsize=10_000)
def endpoint(agent: AgentId) -> str:
    """The part of a key that names an agent; its own colons cannot be taken for ours."""
    return f"{_plain(agent.type)}:{_plain(agent.instance or 'default')}"


def agent_of(endpoint: str) -> AgentId:
    kind, _, instance = endpoint.partition(":")
    return AgentId(
        type=unquote(kind), instance=None if instance == "default" else unquote(instance)
    )


@dataclass(frozen=True, slots=True)
class Keys:
    """The names under one prefix."""

    prefix: str

    def named(self, names: Iterable[str], name: str) -> tuple[bytes, ...]:
        """The keys that a script wants, of one agent's endpoint or of something with a name."""
        return tuple(f"{self.prefix}:{_PATTERNS[key].format(name)}".encode() for key in names)


def name_of(text: str) -> str:
    """A free text as the part of a key that names something."""
    return _plain(text)


def _plain(text: str) -> str:
    # What has a meaning in keys and hash tags is written as in a URL; all else stays readable.
    for character, written in (("%", "%25"), (":", "%3A"), ("{", "%7B"), ("}", "%7D")):
        text = text.replace(character, written)
    return text


_PATTERNS = {**_OF_AN_AGENT, **_OF_A_NAME, **_OF_ALL}

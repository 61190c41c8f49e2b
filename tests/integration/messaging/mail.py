"""Agents and messages for tests."""

from __future__ import annotations

import json
from typing import Any

import redis

from flowengine.messaging import AgentId, AgentMessage, MessagePriority, MessageType

ASKER = AgentId(type="asker")
WORKER = AgentId(type="worker", instance="1")


def mail(name: str | int, **fields: Any) -> AgentMessage:
    """A message of its own id."""
    usual = {"message_id": f"message-{name}", "payload": {"name": name}}
    given = {**usual, "message_type": MessageType.EVENT, **fields}
    return AgentMessage(sender=ASKER, recipient=WORKER, **given)


def reserved(client: redis.Redis) -> list[str]:
    """The ids of all that is in anybody's hands, as it is written in Redis."""
    found: list[str] = []
    for name, value in client.hgetall("ao:reserved:worker:1").items():
        if value == "-":  # stops a cancelled receive that has not arrived yet
            continue
        _, _, kept = value.partition(" ")
        found += [one for one in json.loads(kept)[0] if one] if name.endswith("+") else [kept]
    return found


HIGH, NORMAL, LOW = MessagePriority.HIGH, MessagePriority.NORMAL, MessagePriority.LOW

"""Agents and messages for tests."""

from __future__ import annotations

import json
from typing import Any

import redis

from flowengine.messaging import AgentId, AgentMessage, MessagePriority, MessageType

ASKER = AgentId(type="asker")
WORKER = AgentId(type="worker", instance="1")


def sample(name: str | int, **fields: Any) -> AgentMessage:
    """A message with an id made of `name`."""
    defaults = {"message_id": f"message-{name}", "payload": {"name": name}}
    values = {**defaults, "message_type": MessageType.EVENT, **fields}
    return AgentMessage(sender=ASKER, recipient=WORKER, **values)


def reserved(client: redis.Redis) -> list[str]:
    """The ids of all reserved messages, as stored in Redis."""
    ids: list[str] = []
    for name, value in client.hgetall("ao:reserved:worker:1").items():
        if value == "-":  # stops a cancelled receive that has not arrived yet
            continue
        _, _, stored = value.partition(" ")
        ids += [one for one in json.loads(stored)[0] if one] if name.endswith("+") else [stored]
    return ids


HIGH, NORMAL, LOW = MessagePriority.HIGH, MessagePriority.NORMAL, MessagePriority.LOW

"""Agents and messages for tests."""

from __future__ import annotations

from typing import Any

from flowengine.messaging import AgentId, AgentMessage, MessagePriority, MessageType

ASKER = AgentId(type="asker")
WORKER = AgentId(type="worker", instance="1")


def mail(name: str | int, **fields: Any) -> AgentMessage:
    """A message of its own id."""
    given = {"message_type": MessageType.EVENT, "payload": {"name": name}, **fields}
    return AgentMessage(message_id=f"message-{name}", sender=ASKER, recipient=WORKER, **given)


HIGH, NORMAL, LOW = MessagePriority.HIGH, MessagePriority.NORMAL, MessagePriority.LOW

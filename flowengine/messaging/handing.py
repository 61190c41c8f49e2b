"""What `receive.lua` handed out, as messages.

A message was validated when it was sent, and what we stored of it is known to fit. So it is read
as JSON, looked at, and put into its models as it is: to validate every field once more would take
longer. Whatever looks different from what we write is validated as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json

from flowengine.messaging.letters import UNREADABLE, moment
from flowengine.messaging.making import made
from flowengine.messaging.models import (
    AgentId,
    AgentMessage,
    MessagePriority,
    MessageType,
    QueueMessage,
    ReceivedMessage,
)
from flowengine.messaging.tokens import suffix


@dataclass(frozen=True, slots=True)
class Unfit:
    """What was reserved under a token cannot be handed to anybody."""

    token: str
    problem: str


def received(token: str, answer: bytes | Sequence[bytes]) -> list[ReceivedMessage | Unfit] | None:
    """The messages; None when they have to be asked for once more, apart."""
    head, lines = _lines(answer)
    deadline, count, numbers, types, told = head.split(b" ", 4)
    if len(lines) != int(count):
        return None  # a message has lines of its own, which none has that we wrote
    places = range(1, len(lines) + 1) if numbers == b"-" else map(int, numbers.split(b","))
    tokens = [token + suffix(place) for place in places]
    taken = () if types == b"-" else types.split(b",")
    tries: Mapping[str, str] = {} if told == b"{}" else json.loads(told.decode(errors="replace"))
    until, stored = _iso(deadline), [line.split(b" ", 4) for line in lines]
    bodies = [parts[-1].rpartition(_ADDRESS) for parts in stored]
    said = _said([text for text, _, _ in bodies])
    return [
        _handed(
            name,
            until,
            taken,
            stored[place],
            _as_we_write_it(said[place], bodies[place][2]),
            tries.get(str(place + 1)) if tries else None,
        )
        for place, name in enumerate(tokens)
    ]


def _lines(answer: bytes | Sequence[bytes]) -> tuple[bytes, Sequence[bytes]]:
    """The head, and what is stored of each message."""
    if isinstance(answer, bytes):
        head, _, line = answer.partition(b"\n")
        return head, [line]
    head, *texts = answer
    if len(texts) == int(head.split(b" ", 2)[1]):
        return head, texts
    return head, [line for text in texts for line in text.split(b"\n")]


def _said(texts: Sequence[bytes]) -> Sequence[Any]:
    """What each message says, but for its address; None when they cannot be read at once."""
    with suppress(ValueError):
        said: list[Any] = from_json(b"[%b}]" % b"},".join(texts))
        if len(said) == len(texts):
            return said
    return [None] * len(texts)


def _handed(
    token: str,
    until: str,
    taken: Sequence[bytes],
    parts: Sequence[bytes],
    message: AgentMessage | None,
    tries: str | None,
) -> ReceivedMessage | Unfit:
    try:
        priority, kind, sent, _, body = parts
        if taken and kind not in taken:
            return Unfit(token, f"not subscribed: the agent takes no {kind.decode()}")
        attempts, _, error = (tries or "0").partition(" ")
        queued = {
            "message": message or AgentMessage.model_validate_json(body),
            "priority": _PRIORITIES[int(priority)],
            "enqueued_at": _iso(sent),
            "delivery_attempts": int(attempts),
            "last_error": error or None,
        }
    except (ValueError, KeyError):
        return Unfit(token, UNREADABLE)
    fields = {
        "token": token,
        "queue_message": made(QueueMessage, queued),
        "visibility_deadline": until,
    }
    return made(ReceivedMessage, fields)


def _as_we_write_it(said: Any, address: bytes) -> AgentMessage | None:
    """The message, if it looks like those that we write."""
    try:
        sender, recipient = _addressed(address)
        name, payload, stamp = said["message_id"], said["payload"], said["timestamp"]
        kind, priority = _TYPES[said["message_type"]], _PRIORITIES[said["priority"]]
        correlation = said.get("correlation_id")
    except (ValueError, KeyError, TypeError):
        return None
    if type(name) is not str or len(name) < 6 or type(payload) is not dict:
        return None
    if type(stamp) is not str or not (correlation is None or type(correlation) is str):
        return None
    fields = {
        "message_id": name,
        "sender": sender,
        "recipient": recipient,
        "message_type": kind,
        "payload": payload,
        "priority": priority,
        "timestamp": stamp,
        "correlation_id": correlation,
    }
    return made(AgentMessage, fields)


@lru_cache(maxsize=1000)  # few send to few, and an `AgentId` never changes
def _addressed(text: bytes) -> tuple[AgentId, AgentId]:
    address = _Address.model_validate_json(b'{"sender":' + text)
    return address.sender, address.recipient


class _Address(BaseModel):
    model_config = ConfigDict(extra="forbid")  # we write nothing behind it

    sender: AgentId
    recipient: AgentId


@lru_cache(maxsize=100)  # those of one batch were sent at one moment
def _iso(stamp: bytes) -> str:
    return moment(int(stamp)).isoformat()


_ADDRESS = b',"sender":'
_TYPES = {kind.value: kind for kind in MessageType}
_PRIORITIES = {priority.value: priority for priority in MessagePriority}

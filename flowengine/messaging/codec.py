"""Messages in the form in which `send.lua` stores them, and the tokens of reservations.

A message is validated when it is sent. The decoder therefore parses its JSON, checks the types of
the fields and builds the models without validation, which is faster. A body that differs from the
encoder's form is validated completely.

One receive has one token. In a batch, the first message has the token itself and the second has it
with the suffix `-2`.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json

from flowengine.errors import MessageCoordinatorError
from flowengine.messaging.models import (
    AgentId,
    AgentMessage,
    DeadLetter,
    FailureType,
    MessagePriority,
    MessageType,
    QueueMessage,
    ReceivedMessage,
    make,
)
from flowengine.messaging.payloads import payload_json

UNREADABLE = "the stored message cannot be read"
_TOKEN = re.compile(r"(res_[0-9a-f]{16})(?:-([2-9]|[1-9][0-9]{1,2}))?")


def new_token() -> str:
    return f"res_{random.getrandbits(64):016x}"


def sanitized(token: str) -> str:
    """The token, or `?` for a malformed one: its spaces would break the script's argument."""
    return token if _TOKEN.fullmatch(token) else "?"


def token_ranges(tokens: Sequence[str]) -> str:
    """The argument of `ack.lua`: consecutive tokens of one batch become one range."""
    if len(tokens) == 1:
        return sanitized(tokens[0])
    ranges: list[str] = []
    batch, first, last, following = "", 0, 0, ""
    for token in tokens:
        if token == following:
            last += 1
        else:
            if batch:
                ranges.append(f"{batch} {first} {last} ")
            match = _TOKEN.fullmatch(token)
            batch, first = (match[1], int(match[2] or 1)) if match else ("?", 1)
            last = first
        following = f"{batch}-{last + 1}"
    return "".join([*ranges, f"{batch} {first} {last} "])


class MessageEncoder:
    """Encodes messages from one sender to one recipient.

    The addresses come from the call, not from the message: a broadcast is one message to many
    recipients. They are encoded once and appended to each message.
    """

    def __init__(self, sender: AgentId, recipient: AgentId, max_bytes: int = sys.maxsize) -> None:
        self._recipient, self._max_bytes = recipient, max_bytes
        self._address = _address(sender, recipient)
        now = datetime.now(UTC).isoformat()
        self._timestamp_and_address = f',"timestamp":"{now}"{self._address}'

    def body(self, message: AgentMessage) -> str:
        # Fields without a value are left out: that saves space and time.
        if message.timestamp:
            excluded, rest = _ADDRESS, self._address
        else:
            excluded, rest = _TIMESTAMP_AND_ADDRESS, self._timestamp_and_address
        what = f"message {message.message_id!r}"
        body = payload_json(message, excluded[message.correlation_id is None], what)[:-1]
        check_size(body, message.message_id, self._recipient, self._max_bytes)
        return body + rest

    def batch(self, messages: Sequence[AgentMessage]) -> tuple[str, bytes]:
        """The headers of all messages, and all ids and bodies concatenated."""
        headers: list[str] = []
        texts: list[bytes] = []
        for message in messages:
            name, body = message.message_id.encode(), self.body(message).encode()
            header = _HEADERS[message.priority, message.message_type]
            headers.append(f"{header} {len(name)} {len(body)} ")
            texts += (name, body)
        return "".join(headers), b"".join(texts)


def check_size(body: str, message_id: str, recipient: AgentId, most: int) -> None:
    """Refuse a message that is too large for a queue in memory."""
    size = len(body)
    if size * 4 > most:  # no character has more than four bytes
        size = len(body.encode())
        if size > most:
            raise MessageCoordinatorError(
                f"send to {recipient}",
                f"message {message_id!r} takes {size:,} bytes, the limit is {most:,} (setting "
                "max_message_bytes): store the data elsewhere and send its address",
            )


@lru_cache(maxsize=1000)
def _address(sender: AgentId, recipient: AgentId) -> str:
    agents = (agent.model_dump_json(exclude_none=True) for agent in (sender, recipient))
    return ',"sender":{},"recipient":{}}}'.format(*agents)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A reserved message that cannot be delivered, and why."""

    token: str
    problem: str


def decode_received(
    token: str, response: bytes | Sequence[bytes]
) -> list[ReceivedMessage | Rejected] | None:
    """Decode the response of `receive.lua`; None if it must be repeated with `apart`."""
    head, lines = _lines(response)
    deadline, count, numbers, types, retried = head.split(b" ", 4)
    if len(lines) != int(count):
        return None  # a message contains line breaks: it does not come from our encoder
    places = range(1, len(lines) + 1) if numbers == b"-" else map(int, numbers.split(b","))
    tokens = [token if place == 1 else f"{token}-{place}" for place in places]
    subscribed = () if types == b"-" else types.split(b",")
    tries: Mapping[str, str] = (
        {} if retried == b"{}" else json.loads(retried.decode(errors="replace"))
    )
    until, stored = _iso(deadline), [line.split(b" ", 4) for line in lines]
    bodies = [parts[-1].rpartition(_SENDER) for parts in stored]
    parsed = _parse_all([text for text, _, _ in bodies])
    return [
        _received(
            token,
            until,
            subscribed,
            stored[place],
            _message(parsed[place], bodies[place][2]),
            tries.get(str(place + 1)) if tries else None,
        )
        for place, token in enumerate(tokens)
    ]


def decode_dead_letters(response: Sequence[bytes]) -> list[DeadLetter]:
    """Decode the response of `dead_letters.lua`: id and dead letter in turn."""
    pairs = zip(response[::2], response[1::2], strict=True)
    return [_dead_letter(message_id, letter) for message_id, letter in pairs]


def _lines(response: bytes | Sequence[bytes]) -> tuple[bytes, Sequence[bytes]]:
    """The header of the response, and the stored form of each message."""
    if isinstance(response, bytes):
        head, _, line = response.partition(b"\n")
        return head, [line]
    head, *texts = response
    if len(texts) == int(head.split(b" ", 2)[1]):
        return head, texts
    return head, [line for text in texts for line in text.split(b"\n")]


def _parse_all(texts: Sequence[bytes]) -> Sequence[Any]:
    """The fields of each message except its addresses, parsed in one call; None if that fails."""
    with suppress(ValueError):
        parsed: list[Any] = from_json(b"[%b}]" % b"},".join(texts))
        if len(parsed) == len(texts):
            return parsed
    return [None] * len(texts)


def _received(
    token: str,
    until: str,
    subscribed: Sequence[bytes],
    parts: Sequence[bytes],
    message: AgentMessage | None,
    tries: str | None,
) -> ReceivedMessage | Rejected:
    try:
        priority, kind, sent, _, body = parts
        if subscribed and kind not in subscribed:
            return Rejected(token, f"not subscribed: the agent takes no {kind.decode()}")
        attempts, _, error = (tries or "0").partition(" ")
        queue_message = {
            "message": message or AgentMessage.model_validate_json(body),
            "priority": _PRIORITIES[int(priority)],
            "enqueued_at": _iso(sent),
            "delivery_attempts": int(attempts),
            "last_error": error or None,
        }
    except (ValueError, KeyError):
        return Rejected(token, UNREADABLE)
    fields = {
        "token": token,
        "queue_message": make(QueueMessage, queue_message),
        "visibility_deadline": until,
    }
    return make(ReceivedMessage, fields)


def _message(parsed: Any, address: bytes) -> AgentMessage | None:
    """The message, if it has the encoder's form."""
    try:
        sender, recipient = _agents(address)
        name, payload, stamp = parsed["message_id"], parsed["payload"], parsed["timestamp"]
        kind, priority = _TYPES[parsed["message_type"]], _PRIORITIES[parsed["priority"]]
        correlation = parsed.get("correlation_id")
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
    return make(AgentMessage, fields)


@lru_cache(maxsize=1000)  # an `AgentId` is immutable, and pairs of agents are few
def _agents(text: bytes) -> tuple[AgentId, AgentId]:
    address = _Address.model_validate_json(b'{"sender":' + text)
    return address.sender, address.recipient


class _Address(BaseModel):
    model_config = ConfigDict(extra="forbid")  # the encoder writes the addresses last

    sender: AgentId
    recipient: AgentId


def _dead_letter(message_id: bytes, letter: bytes) -> DeadLetter:
    failure, attempts, died, length, rest = letter.split(b" ", 4)
    error, stored = rest[: int(length)], rest[int(length) :]
    return DeadLetter(
        message_id=message_id.decode(errors="replace"),
        failure=FailureType(failure.decode()),
        error=error.decode(errors="replace"),
        attempts=int(attempts),
        died_at=_time(int(died)),
        message=_validated(stored),
        raw=stored,
    )


def _validated(stored: bytes) -> AgentMessage | None:
    parts = stored.split(b" ", 4)
    try:
        return AgentMessage.model_validate_json(parts[4]) if len(parts) == 5 else None
    except ValidationError:
        return None


def _time(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1_000_000, UTC)


@lru_cache(maxsize=100)  # messages of a batch have the same time
def _iso(microseconds: bytes) -> str:
    return _time(int(microseconds)).isoformat()


#: Excluded fields of a message with a correlation id, and of one without.
_ADDRESS = ({"sender", "recipient"}, {"sender", "recipient", "correlation_id"})
_TIMESTAMP_AND_ADDRESS = ({*_ADDRESS[0], "timestamp"}, {*_ADDRESS[1], "timestamp"})
_HEADERS = {
    (priority, kind): f"{priority.value} {kind.value}"
    for priority in MessagePriority
    for kind in MessageType
}
_SENDER = b',"sender":'
_TYPES = {kind.value: kind for kind in MessageType}
_PRIORITIES = {priority.value: priority for priority in MessagePriority}

"""Messages as they are stored, and back."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from flowengine.messaging.models import (
    AgentId,
    AgentMessage,
    DeadLetter,
    FailureType,
    MessagePriority,
    MessageType,
    ReceivedMessage,
)

UNREADABLE = "the stored message cannot be read"


@dataclass(frozen=True, slots=True)
class Unfit:
    """What was reserved under a token cannot be handed to anybody."""

    token: str
    problem: str


def microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)


def moment(stamp: int) -> datetime:
    return datetime.fromtimestamp(stamp / 1_000_000, UTC)


class Writing:
    """Messages from one agent to another as `send.lua` wants them.

    Who sends it to whom is what the call says, not the message: a broadcast is one message to many.
    So this is written once, and put behind what each message says itself.
    """

    def __init__(self, sender: AgentId, recipient: AgentId) -> None:
        self._address = _address(sender, recipient)
        now = datetime.now(UTC).isoformat()
        self._dated = f',"timestamp":"{now}"{self._address}'

    def texts(self, messages: Sequence[AgentMessage]) -> tuple[str, bytes]:
        """The heads of all, and all ids and bodies in one."""
        heads: list[str] = []
        texts: list[bytes] = []
        for message in messages:
            if message.timestamp:
                body = message.model_dump_json(exclude=_ADDRESS)[:-1] + self._address
            else:
                body = message.model_dump_json(exclude=_DATED_ADDRESS)[:-1] + self._dated
            name, written = message.message_id.encode(), body.encode()
            head = _HEADS[message.priority, message.message_type]
            heads.append(f"{head} {len(name)} {len(written)} ")
            texts += (name, written)
        return "".join(heads), b"".join(texts)


@lru_cache(maxsize=1000)
def _address(sender: AgentId, recipient: AgentId) -> str:
    return f',"sender":{sender.model_dump_json()},"recipient":{recipient.model_dump_json()}}}'


_ADDRESS = {"sender", "recipient"}
_DATED_ADDRESS = {*_ADDRESS, "timestamp"}
_HEADS = {
    (priority, kind): f"{priority.value} {kind.value}"
    for priority in MessagePriority
    for kind in MessageType
}


def received(
    token: str, types: bytes, deadline: int, stored: Sequence[bytes], *tried: Any
) -> Sequence[ReceivedMessage | Unfit]:
    """What `receive.lua` handed out."""
    taken, until = types.split(), moment(deadline).isoformat()
    tries: dict[int, bytes] = dict(zip(tried[::2], tried[1::2], strict=True))
    handed = [
        _handed(
            token if number == 1 else f"{token}-{number}",
            until,
            taken,
            text,
            tries.get(number, b""),
        )
        for number, text in enumerate(stored, 1)
    ]
    good = [one for one in handed if not isinstance(one, Unfit)]
    if len(good) == len(handed):
        # All are read in one go: one by one it takes half as long again.
        with suppress(ValueError):
            bodies = b",".join([one["queue_message"]["message"] for one in good])
            messages = _MESSAGES.validate_json(b"[%b]" % bodies)
            for one, message in zip(good, messages, strict=True):
                one["queue_message"]["message"] = message
            return _RECEIVED.validate_python(good)
    return [one if isinstance(one, Unfit) else _alone(one) for one in handed]


def _handed(
    token: str, until: str, taken: Sequence[bytes], stored: bytes, tries: bytes
) -> dict[str, Any] | Unfit:
    """The parts of a `ReceivedMessage`, the message itself still as it is stored."""
    try:
        priority, kind, sent, _, body = stored.split(b" ", 4)
        enqueued = _enqueued(sent)
    except ValueError:
        return Unfit(token, UNREADABLE)
    if taken and kind not in taken:
        return Unfit(token, f"not subscribed: the agent takes no {kind.decode()}")
    attempts, _, error = tries.partition(b" ")
    queued = {
        "message": body,
        "priority": _PRIORITIES.get(priority, priority),
        "enqueued_at": enqueued,
        "delivery_attempts": int(attempts or 0),
        "last_error": error.decode(errors="replace") or None,
    }
    return {"token": token, "queue_message": queued, "visibility_deadline": until}


def _alone(handed: dict[str, Any]) -> ReceivedMessage | Unfit:
    queued = handed["queue_message"]
    try:
        # It may have been read already, with others that could not be.
        if isinstance(queued["message"], bytes):
            queued["message"] = AgentMessage.model_validate_json(queued["message"])
        return ReceivedMessage.model_validate(handed)
    except ValueError:
        return Unfit(handed["token"], UNREADABLE)


@lru_cache(maxsize=100)  # those of one batch were sent at one moment
def _enqueued(sent: bytes) -> str:
    return moment(int(sent)).isoformat()


_PRIORITIES = {b"%d" % priority.value: priority for priority in MessagePriority}
_MESSAGES = TypeAdapter(list[AgentMessage])
_RECEIVED = TypeAdapter(list[ReceivedMessage])


def dead_letters(answer: Sequence[bytes]) -> list[DeadLetter]:
    """What `dead_letters.lua` found, an id and a letter for each."""
    pairs = zip(answer[::2], answer[1::2], strict=True)
    return [_dead_letter(message_id, letter) for message_id, letter in pairs]


def _dead_letter(message_id: bytes, letter: bytes) -> DeadLetter:
    failure, attempts, died, length, rest = letter.split(b" ", 4)
    error, stored = rest[: int(length)], rest[int(length) :]
    return DeadLetter(
        message_id=message_id.decode(errors="replace"),
        failure=FailureType(failure.decode()),
        error=error.decode(errors="replace"),
        attempts=int(attempts),
        died_at=moment(int(died)),
        message=_readable(stored),
        raw=stored,
    )


def _readable(stored: bytes) -> AgentMessage | None:
    parts = stored.split(b" ", 4)
    try:
        return AgentMessage.model_validate_json(parts[4]) if len(parts) == 5 else None
    except ValidationError:
        return None

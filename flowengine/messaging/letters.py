"""Messages as they are stored, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import ValidationError

from flowengine.messaging.models import (
    AgentMessage,
    DeadLetter,
    FailureType,
    MessagePriority,
    QueueMessage,
    ReceivedMessage,
)

_PRIORITIES = {str(level.value).encode(): level for level in MessagePriority}


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What was reserved under a token is not a message."""

    token: str
    problem: str


def microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)


def moment(stamp: int) -> datetime:
    return datetime.fromtimestamp(stamp / 1_000_000, UTC)


def received(
    token: str, deadline: int, answer: Sequence[bytes]
) -> list[ReceivedMessage | Unreadable]:
    """What `receive.lua` handed out, two texts for each message."""
    until = moment(deadline).isoformat()
    pairs = zip(answer[::2], answer[1::2], strict=True)
    return [
        _received(token if number == 1 else f"{token}-{number}", until, stored, tries)
        for number, (stored, tries) in enumerate(pairs, 1)
    ]


def _received(token: str, until: str, stored: bytes, tries: bytes) -> ReceivedMessage | Unreadable:
    try:
        priority, _, sent, _, body = stored.split(b" ", 4)
        message = AgentMessage.model_validate_json(body)
    except ValidationError as error:
        return Unreadable(token, f"not a message: {error.errors()[0]['msg']}")
    except ValueError:
        return Unreadable(token, "not a message: it has gone")
    attempts, _, last_error = tries.partition(b" ")
    # Not validated once more: every part of it was just made here.
    queue_message = QueueMessage.model_construct(
        message=message,
        priority=_PRIORITIES[priority],
        enqueued_at=moment(int(sent)).isoformat(),
        delivery_attempts=int(attempts or 0),
        last_error=last_error.decode(errors="replace") or None,
    )
    return ReceivedMessage.model_construct(
        token=token, queue_message=queue_message, visibility_deadline=until
    )


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

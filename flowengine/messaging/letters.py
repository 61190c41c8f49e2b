"""Messages as they are stored, and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import ValidationError

from flowengine.messaging.models import (
    AgentMessage,
    DeadLetter,
    FailureType,
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


def received(
    token: str, types: bytes, deadline: int, answer: Sequence[bytes]
) -> list[ReceivedMessage | Unfit]:
    """What `receive.lua` handed out, two texts for each message."""
    until = moment(deadline).isoformat()
    pairs = zip(answer[::2], answer[1::2], strict=True)
    return [
        _received(token if number == 1 else f"{token}-{number}", types, until, stored, tries)
        for number, (stored, tries) in enumerate(pairs, 1)
    ]


def _received(
    token: str, types: bytes, until: str, stored: bytes, tries: bytes
) -> ReceivedMessage | Unfit:
    try:
        priority, kind, sent, _, body = stored.split(b" ", 4)
        enqueued = moment(int(sent)).isoformat()
    except ValueError:
        return Unfit(token, UNREADABLE)
    if types and kind not in types.split():
        return Unfit(token, f"not subscribed: the agent takes no {kind.decode()}")
    attempts, _, error = tries.partition(b" ")
    last_error = json.dumps(error.decode(errors="replace")) if error else "null"
    # The whole of it is read in one go: made part by part it would take twice the time.
    text = (
        f'{{"token":"{token}","visibility_deadline":"{until}","queue_message":{{'
        f'"priority":{priority.decode()},"enqueued_at":"{enqueued}",'
        f'"delivery_attempts":{int(attempts or 0)},"last_error":{last_error},"message":'
    )
    try:
        return ReceivedMessage.model_validate_json(text.encode() + body + b"}}")
    except ValueError:
        return Unfit(token, UNREADABLE)


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

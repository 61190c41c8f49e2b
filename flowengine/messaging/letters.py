"""Messages as they are stored, and back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache

from pydantic import ValidationError

from flowengine.messaging.models import (
    AgentId,
    AgentMessage,
    DeadLetter,
    FailureType,
    MessagePriority,
    MessageType,
)

UNREADABLE = "the stored message cannot be read"


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

    def body(self, message: AgentMessage) -> str:
        # What is not written costs nothing to keep, to carry and to read.
        if message.timestamp:
            unwritten, rest = _ADDRESS, self._address
        else:
            unwritten, rest = _DATED_ADDRESS, self._dated
        return (
            message.model_dump_json(exclude=unwritten[message.correlation_id is None])[:-1] + rest
        )

    def texts(self, messages: Sequence[AgentMessage]) -> tuple[str, bytes]:
        """The heads of all, and all ids and bodies in one."""
        heads: list[str] = []
        texts: list[bytes] = []
        for message in messages:
            name, written = message.message_id.encode(), self.body(message).encode()
            head = _HEADS[message.priority, message.message_type]
            heads.append(f"{head} {len(name)} {len(written)} ")
            texts += (name, written)
        return "".join(heads), b"".join(texts)


@lru_cache(maxsize=1000)
def _address(sender: AgentId, recipient: AgentId) -> str:
    named = (agent.model_dump_json(exclude_none=True) for agent in (sender, recipient))
    return ',"sender":{},"recipient":{}}}'.format(*named)


#: What is not written of a message with a correlation id, and of one without.
_ADDRESS = ({"sender", "recipient"}, {"sender", "recipient", "correlation_id"})
_DATED_ADDRESS = ({*_ADDRESS[0], "timestamp"}, {*_ADDRESS[1], "timestamp"})
_HEADS = {
    (priority, kind): f"{priority.value} {kind.value}"
    for priority in MessagePriority
    for kind in MessageType
}


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

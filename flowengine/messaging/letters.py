"""Messages as they are stored, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

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
from flowengine.messaging.tokens import suffix

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


def received(token: str, answer: bytes | Sequence[bytes]) -> list[ReceivedMessage | Unfit] | None:
    """What `receive.lua` handed out; None when it has to be asked for once more, apart."""
    head, lines = _lines(answer)
    deadline, count, numbers, types, told = head.split(b" ", 4)
    if len(lines) != int(count):
        return None  # a message has lines of its own, which none has that we wrote
    places = range(1, len(lines) + 1) if numbers == b"-" else map(int, numbers.split(b","))
    suffixes = [suffix(place) for place in places]
    handed = list(_handed(token, deadline, types, told, suffixes, lines))
    with suppress(ValueError, TypeError):  # one cannot be read, or is not to be handed out
        # All are read in one go: one by one it takes half as long again.
        good = _RECEIVED.validate_json(b"[%b]" % b",".join(handed))  # type: ignore[arg-type]
        if len(good) == len(handed):
            return list(good)
    return [
        one if isinstance(one, Unfit) else _alone(token + end, one)
        for end, one in zip(suffixes, handed, strict=True)
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


def _handed(
    token: str,
    deadline: bytes,
    types: bytes,
    told: bytes,
    suffixes: Sequence[str],
    lines: Sequence[bytes],
) -> Iterator[bytes | Unfit]:
    """Each a `ReceivedMessage` as JSON, around the message as it is stored."""
    form = _HANDED % (token.encode(), _iso(deadline))
    taken = () if types == b"-" else types.split(b",")
    tries: dict[str, str] = {} if told == b"{}" else json.loads(told.decode(errors="replace"))
    attempts, error = b"0", b"null"
    for number, (end, line) in enumerate(zip(suffixes, lines, strict=True), 1):
        try:
            priority, kind, sent, _, body = line.split(b" ", 4)
            enqueued = _iso(sent)
        except ValueError:
            yield Unfit(token + end, UNREADABLE)
            continue
        if taken and kind not in taken:
            problem = f"not subscribed: the agent takes no {kind.decode()}"
            yield Unfit(token + end, problem)
            continue
        if tries:
            made, _, text = tries.get(str(number), "0").partition(" ")
            attempts, error = made.encode(), json.dumps(text or None).encode()
        yield form % (end.encode(), body, priority, enqueued, attempts, error)


def _alone(token: str, handed: bytes) -> ReceivedMessage | Unfit:
    try:
        return ReceivedMessage.model_validate_json(handed)
    except ValueError:
        return Unfit(token, UNREADABLE)


@lru_cache(maxsize=100)  # those of one batch were sent at one moment
def _iso(stamp: bytes) -> bytes:
    return moment(int(stamp)).isoformat().encode()


_HANDED = (
    b'{"token":"%b%%b","queue_message":{"message":%%b,"priority":%%b,"enqueued_at":"%%b",'
    b'"delivery_attempts":%%b,"last_error":%%b},"visibility_deadline":"%b"}'
)
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

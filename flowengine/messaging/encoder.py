"""Messages in the form in which `send.lua` stores them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache

from flowengine.messaging.models import AgentId, AgentMessage, MessagePriority, MessageType


def microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)


class MessageEncoder:
    """Encodes messages from one sender to one recipient.

    The addresses come from the call, not from the message: a broadcast is one message to many
    recipients. They are encoded once and appended to each message.
    """

    def __init__(self, sender: AgentId, recipient: AgentId) -> None:
        self._address = _address(sender, recipient)
        now = datetime.now(UTC).isoformat()
        self._timestamp_and_address = f',"timestamp":"{now}"{self._address}'

    def body(self, message: AgentMessage) -> str:
        # Fields without a value are left out: that saves space and time.
        if message.timestamp:
            excluded, rest = _ADDRESS, self._address
        else:
            excluded, rest = _TIMESTAMP_AND_ADDRESS, self._timestamp_and_address
        return message.model_dump_json(exclude=excluded[message.correlation_id is None])[:-1] + rest

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


@lru_cache(maxsize=1000)
def _address(sender: AgentId, recipient: AgentId) -> str:
    agents = (agent.model_dump_json(exclude_none=True) for agent in (sender, recipient))
    return ',"sender":{},"recipient":{}}}'.format(*agents)


#: Excluded fields of a message with a correlation id, and of one without.
_ADDRESS = ({"sender", "recipient"}, {"sender", "recipient", "correlation_id"})
_TIMESTAMP_AND_ADDRESS = ({*_ADDRESS[0], "timestamp"}, {*_ADDRESS[1], "timestamp"})
_HEADERS = {
    (priority, kind): f"{priority.value} {kind.value}"
    for priority in MessagePriority
    for kind in MessageType
}

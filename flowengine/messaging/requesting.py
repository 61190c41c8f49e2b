"""A request and its answer: the plans.

An answer is not a message in a queue. It waits under the id of its request for as long as
somebody waits for it, and goes with them: an answer that comes too late leaves nothing behind.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from flowengine.errors import MessageCoordinatorError, RequestTimeout
from flowengine.messaging.driving import Call, Plan, Wait
from flowengine.messaging.keys import Keys, name_of
from flowengine.messaging.models import AgentId, AgentMessage, MessageType, ReceivedMessage
from flowengine.messaging.scripting import Script
from flowengine.messaging.sending import Sending

_EXPECT = Script.load("expect")
_RESPOND = Script.load("respond")
_COLLECT = Script.load("collect")


class Requesting:
    """Plans for requests under one key prefix."""

    def __init__(self, keys: Keys, sending: Sending) -> None:
        self._keys, self._sending = keys, sending

    def request(
        self, sender: AgentId, recipient: AgentId, message: AgentMessage, timeout: float
    ) -> Plan[AgentMessage]:
        until = time.monotonic() + timeout
        correlation = message.correlation_id or message.message_id
        asked = message.model_copy(
            update={"message_type": MessageType.REQUEST, "correlation_id": correlation}
        )
        yield self._call(_EXPECT, correlation, max(round(timeout * 1000), 1))
        left = max(until - time.monotonic(), 0.001)
        (result,) = yield from self._sending.send(sender, recipient, [asked], expires_in=left)
        if not result.delivered:
            yield self._call(_COLLECT, correlation, 1)
            raise MessageCoordinatorError(f"send a request to {recipient}", result.error or "")
        (bell,) = self._keys.named(["answer_bell"], name_of(correlation))
        while True:
            answer = yield self._call(_COLLECT, correlation, 0)
            left = until - time.monotonic()
            if answer is not None or left <= 0:
                break
            yield Wait(bell, left)
        yield self._call(_COLLECT, correlation, 1)
        if answer is None:
            raise RequestTimeout(str(recipient), message.message_id, timeout)
        return AgentMessage.model_validate_json(answer)

    def respond(self, request: ReceivedMessage, payload: Mapping[str, Any]) -> Plan[bool]:
        asked = request.queue_message.message
        correlation = asked.correlation_id or asked.message_id
        answer = AgentMessage(
            message_id=f"answer-{secrets.token_hex(8)}",
            sender=asked.recipient,
            recipient=asked.sender,
            message_type=MessageType.RESPONSE,
            payload=dict(payload),
            correlation_id=correlation,
        )
        heard = yield self._call(_RESPOND, correlation, answer.model_dump_json())
        return bool(heard)

    def _call(self, script: Script, correlation: str, argument: str | int) -> Call:
        keys = self._keys.named(script.keys, name_of(correlation))
        return Call(script, keys, (argument,))

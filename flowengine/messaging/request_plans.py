"""Plans for requests and responses.

A response is not a message in a queue. It is stored under the correlation id of its request while
the requester waits, and expires with the wait: a late response leaves nothing in Redis.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from flowengine.errors import MessageCoordinatorError, RequestTimeout
from flowengine.messaging.drivers import Call, Plan, Wait
from flowengine.messaging.keys import Keys, name_of
from flowengine.messaging.lua import Script
from flowengine.messaging.models import AgentId, AgentMessage, MessageType, ReceivedMessage
from flowengine.messaging.send_plans import SendPlans

_EXPECT = Script.load("expect")
_RESPOND = Script.load("respond")
_COLLECT = Script.load("collect")


class RequestPlans:
    """Plans for requests under one key prefix."""

    def __init__(self, keys: Keys, send_plans: SendPlans) -> None:
        self._keys, self._send_plans = keys, send_plans

    def request(
        self, sender: AgentId, recipient: AgentId, message: AgentMessage, timeout: float
    ) -> Plan[AgentMessage]:
        until = time.monotonic() + timeout
        correlation = message.correlation_id or message.message_id
        request = message.model_copy(
            update={"message_type": MessageType.REQUEST, "correlation_id": correlation}
        )
        yield self._call(_EXPECT, correlation, max(round(timeout * 1000), 1))
        left = max(until - time.monotonic(), 0.001)
        (result,) = yield from self._send_plans.send(sender, recipient, [request], expires_in=left)
        if not result.delivered:
            yield self._call(_COLLECT, correlation, 1)
            raise MessageCoordinatorError(f"send a request to {recipient}", result.error or "")
        (wakeup,) = self._keys.named(["answer_bell"], name_of(correlation))
        while True:
            response = yield self._call(_COLLECT, correlation, 0)
            left = until - time.monotonic()
            if response is not None or left <= 0:
                break
            yield Wait(wakeup, left)
        yield self._call(_COLLECT, correlation, 1)
        if response is None:
            raise RequestTimeout(str(recipient), message.message_id, timeout)
        return AgentMessage.model_validate_json(response)

    def respond(self, received: ReceivedMessage, payload: Mapping[str, Any]) -> Plan[bool]:
        request = received.queue_message.message
        correlation = request.correlation_id or request.message_id
        response = AgentMessage(
            message_id=f"answer-{secrets.token_hex(8)}",
            sender=request.recipient,
            recipient=request.sender,
            message_type=MessageType.RESPONSE,
            payload=dict(payload),
            correlation_id=correlation,
        )
        accepted = yield self._call(_RESPOND, correlation, response.model_dump_json())
        return bool(accepted)

    def _call(self, script: Script, correlation: str, argument: str | int) -> Call:
        keys = self._keys.named(script.keys, name_of(correlation))
        return Call(script, keys, (argument,))

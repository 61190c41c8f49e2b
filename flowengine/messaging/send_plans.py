"""Plans for sending messages and requests.

A response is not a message in a queue. It is stored under the correlation id of its request while
the requester waits, and expires with the wait: a late response leaves nothing in Redis.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from flowengine.errors import MessageCoordinatorError, RequestTimeout
from flowengine.messaging.codec import MessageEncoder, check_size
from flowengine.messaging.drivers import Plan, RedisErrors, Wait, describe
from flowengine.messaging.interfaces import MessageMetrics
from flowengine.messaging.keys import BATCH_LIMIT, Keys, ScriptCalls, endpoint, name_of
from flowengine.messaging.lua import Call, Script, microseconds
from flowengine.messaging.metrics import MetricsRecorder
from flowengine.messaging.models import (
    AgentId,
    AgentMessage,
    MessagePriority,
    MessageResult,
    MessageType,
    ReceivedMessage,
    make,
)
from flowengine.messaging.payloads import check_payload, payload_json
from flowengine.settings import Settings

_SEND = Script.load("send")
_SEND_ONE = Script.load("send_one")
_EXPECT = Script.load("expect")
_RESPOND = Script.load("respond")
_COLLECT = Script.load("collect")

_ENQUEUED, _DUPLICATE, _FULL, _NOT_SUBSCRIBED = b"1234"
_REFUSALS = {_FULL: "queue full", _NOT_SUBSCRIBED: "not subscribed"}


class SendPlans:
    """Plans for messages to agents under one key prefix."""

    def __init__(
        self, key_prefix: str, metrics: MessageMetrics | None, max_message_bytes: int | None = None
    ) -> None:
        if max_message_bytes is None:
            max_message_bytes = Settings.from_environment().max_message_bytes
        self._max_bytes = max_message_bytes
        self._calls, self._metrics = ScriptCalls(Keys(key_prefix)), MetricsRecorder(metrics)

    def send_message(
        self,
        sender: AgentId,
        recipient: AgentId,
        message: AgentMessage,
        *,
        delay: float = 0.0,
        expires_in: float | None = None,
    ) -> Plan[MessageResult]:
        """Send a message; it is available after `delay` seconds and expires after `expires_in`."""
        (result,) = yield from self.send_batch(
            sender, recipient, [message], delay=delay, expires_in=expires_in
        )
        return result

    def send_batch(
        self,
        sender: AgentId,
        recipient: AgentId,
        messages: Sequence[AgentMessage],
        *,
        delay: float = 0.0,
        expires_in: float | None = None,
    ) -> Plan[list[MessageResult]]:
        """Send messages to one agent; the results are in the same order."""
        if delay < 0 or (expires_in is not None and expires_in <= 0):
            raise ValueError("delay must be 0 or more, expires_in more than 0 seconds")
        times = (microseconds(delay, "delay"), microseconds(expires_in or 0, "expires_in"))
        encoder = MessageEncoder(sender, recipient, self._max_bytes)
        batches = [
            messages[start : start + BATCH_LIMIT] for start in range(0, len(messages), BATCH_LIMIT)
        ]
        # All messages are encoded before one is sent: an invalid one refuses the batch.
        calls = [self._send_call(recipient, batch, times, encoder) for batch in batches]
        results: list[MessageResult] = []
        try:
            for batch, call in zip(batches, calls, strict=True):
                codes = yield from self._enqueue(recipient, call)
                results += map(_result, batch, codes)
        except RedisErrors:
            self._metrics.sent(0, len(messages))
            raise
        delivered = sum(result.delivered for result in results)
        self._metrics.sent(delivered, len(results) - delivered)
        return results

    def broadcast_message(
        self, sender: AgentId, message: AgentMessage, recipients: list[AgentId]
    ) -> Plan[list[MessageResult]]:
        """Send a message to several agents; a result reports a failed send."""
        results: list[MessageResult] = []
        for recipient in recipients:
            try:
                results += yield from self.send_batch(sender, recipient, [message])
            except RedisErrors as error:
                failure = str(MessageCoordinatorError(f"send to {recipient}", describe(error)))
                results.append(
                    MessageResult(message_id=message.message_id, delivered=False, error=failure)
                )
        return results

    def _send_call(
        self,
        recipient: AgentId,
        messages: Sequence[AgentMessage],
        times: tuple[int, int],
        encoder: MessageEncoder,
    ) -> Call:
        name = endpoint(recipient)
        if len(messages) == 1 and times == (0, 0):
            (message,) = messages
            if message.priority is MessagePriority.NORMAL:
                stored = (message.message_type.value, message.message_id, encoder.body(message))
                return self._calls.call(_SEND_ONE, recipient, name, *stored)
        return self._calls.call(_SEND, recipient, name, *times, *encoder.batch(messages))

    def _enqueue(self, recipient: AgentId, call: Call) -> Plan[bytes]:
        """The result code of each message."""
        codes: bytes = yield call
        if _FULL not in codes:
            return codes
        _, dead, _ = yield self._calls.recover(recipient)
        self._metrics.dead_lettered(dead)
        if not dead:
            return codes
        # Expired messages made room. Messages that the first call enqueued are duplicates now.
        again = yield call
        return bytes(
            old if old == _ENQUEUED else new for old, new in zip(codes, again, strict=True)
        )

    def request(
        self, sender: AgentId, recipient: AgentId, message: AgentMessage, *, timeout: float
    ) -> Plan[AgentMessage]:
        """Send a request and wait for the response; raise `RequestTimeout` without one."""
        milliseconds = max(microseconds(timeout, "timeout") // 1000, 1)
        until = time.monotonic() + timeout
        correlation = message.correlation_id or message.message_id
        request = message.model_copy(
            update={"message_type": MessageType.REQUEST, "correlation_id": correlation}
        )
        payload_json(request, set(), f"message {message.message_id!r}")  # before anything is stored
        yield self._request_call(_EXPECT, correlation, milliseconds)
        left = max(until - time.monotonic(), 0.001)
        result = yield from self.send_message(sender, recipient, request, expires_in=left)
        if not result.delivered:
            yield self._request_call(_COLLECT, correlation, 1)
            raise MessageCoordinatorError(f"send a request to {recipient}", result.error or "")
        (wakeup,) = self._calls.keys.named(["answer_wakeup"], name_of(correlation))
        while True:
            response = yield self._request_call(_COLLECT, correlation, 0)
            left = until - time.monotonic()
            if response is not None or left <= 0:
                break
            yield Wait(wakeup, left)
        yield self._request_call(_COLLECT, correlation, 1)
        if response is None:
            raise RequestTimeout(str(recipient), message.message_id, timeout)
        return AgentMessage.model_validate_json(response)

    def respond(self, request: ReceivedMessage, payload: Mapping[str, Any]) -> Plan[bool]:
        """Respond to a request; False if the requester no longer waits.

        The request must still be acknowledged.
        """
        asked = request.message
        what = f"the response to {asked.message_id!r}"
        check_payload(dict(payload), what)
        correlation = asked.correlation_id or asked.message_id
        response = AgentMessage(
            message_id=f"answer-{secrets.token_hex(8)}",
            sender=asked.recipient,
            recipient=asked.sender,
            message_type=MessageType.RESPONSE,
            payload=dict(payload),
            correlation_id=correlation,
        )
        body = payload_json(response, set(), what)
        check_size(body, response.message_id, asked.sender, self._max_bytes)
        accepted = yield self._request_call(_RESPOND, correlation, body)
        return bool(accepted)

    def _request_call(self, script: Script, correlation: str, argument: str | int) -> Call:
        keys = self._calls.keys.named(script.keys, name_of(correlation))
        return Call(script, keys, (argument,))


def _result(message: AgentMessage, code: int) -> MessageResult:
    refusal = _REFUSALS.get(code)
    fields = {
        "message_id": message.message_id,
        "delivered": refusal is None,
        "error": refusal,
        "duplicate": code == _DUPLICATE,
    }
    return make(MessageResult, fields)

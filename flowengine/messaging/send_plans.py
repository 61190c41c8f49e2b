"""Plans for sending messages."""

from __future__ import annotations

from collections.abc import Sequence

from flowengine.errors import MessageCoordinatorError
from flowengine.messaging.drivers import Call, Plan, RedisErrors, describe
from flowengine.messaging.encoder import MessageEncoder, microseconds
from flowengine.messaging.fast_models import make
from flowengine.messaging.keys import endpoint
from flowengine.messaging.lua import Script
from flowengine.messaging.metrics import MetricsRecorder
from flowengine.messaging.models import AgentId, AgentMessage, MessagePriority, MessageResult
from flowengine.messaging.script_calls import BATCH_LIMIT, ScriptCalls

_SEND = Script.load("send")
_SEND_ONE = Script.load("send_one")

_ENQUEUED, _DUPLICATE, _FULL, _NOT_SUBSCRIBED = b"1234"
_REFUSALS = {_FULL: "queue full", _NOT_SUBSCRIBED: "not subscribed"}


class SendPlans:
    """Plans for messages to agents under one key prefix."""

    def __init__(self, calls: ScriptCalls, metrics: MetricsRecorder) -> None:
        self._calls, self._metrics = calls, metrics

    def send(
        self,
        sender: AgentId,
        recipient: AgentId,
        messages: Sequence[AgentMessage],
        delay: float = 0.0,
        expires_in: float | None = None,
    ) -> Plan[list[MessageResult]]:
        if delay < 0 or (expires_in is not None and expires_in <= 0):
            raise ValueError("delay must be 0 or more, expires_in more than 0 seconds")
        times = (microseconds(delay), microseconds(expires_in or 0))
        encoder = MessageEncoder(sender, recipient)
        results: list[MessageResult] = []
        try:
            for start in range(0, len(messages), BATCH_LIMIT):
                batch = messages[start : start + BATCH_LIMIT]
                call = self._call(recipient, batch, times, encoder)
                codes = yield from self._enqueue(recipient, call)
                results += map(_result, batch, codes)
        except RedisErrors:
            self._metrics.sent(0, len(messages))
            raise
        delivered = sum(result.delivered for result in results)
        self._metrics.sent(delivered, len(results) - delivered)
        return results

    def broadcast(
        self, sender: AgentId, message: AgentMessage, recipients: Sequence[AgentId]
    ) -> Plan[list[MessageResult]]:
        results: list[MessageResult] = []
        for recipient in recipients:
            try:
                results += yield from self.send(sender, recipient, [message])
            except RedisErrors as error:
                failure = str(MessageCoordinatorError(f"send to {recipient}", describe(error)))
                results.append(
                    MessageResult(message_id=message.message_id, delivered=False, error=failure)
                )
        return results

    def _call(
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


def _result(message: AgentMessage, code: int) -> MessageResult:
    refusal = _REFUSALS.get(code)
    fields = {
        "message_id": message.message_id,
        "delivered": refusal is None,
        "error": refusal,
        "duplicate": code == _DUPLICATE,
    }
    return make(MessageResult, fields)

"""Sending messages: the plans."""

from __future__ import annotations

from collections.abc import Sequence

from flowengine.errors import MessageCoordinatorError
from flowengine.messaging import letters
from flowengine.messaging.calling import MOST_AT_ONCE, Calling
from flowengine.messaging.counting import Counting
from flowengine.messaging.driving import Call, Plan, RedisTrouble, told
from flowengine.messaging.keys import endpoint
from flowengine.messaging.making import made
from flowengine.messaging.models import AgentId, AgentMessage, MessagePriority, MessageResult
from flowengine.messaging.scripting import Script

_SEND = Script.load("send")
_SEND_ONE = Script.load("send_one")

_TAKEN, _DUPLICATE, _FULL, _NOT_SUBSCRIBED = b"1234"
_REFUSALS = {_FULL: "queue full", _NOT_SUBSCRIBED: "not subscribed"}


class Sending:
    """Plans for messages to agents under one key prefix."""

    def __init__(self, calling: Calling, counting: Counting) -> None:
        self._calling, self._counting = calling, counting

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
        times = (letters.microseconds(delay), letters.microseconds(expires_in or 0))
        written = letters.Writing(sender, recipient)
        results: list[MessageResult] = []
        try:
            for start in range(0, len(messages), MOST_AT_ONCE):
                some = messages[start : start + MOST_AT_ONCE]
                answers = yield from self._taken(
                    recipient, self._call(recipient, some, times, written)
                )
                results += map(_result, some, answers)
        except RedisTrouble:
            self._counting.sent(0, len(messages))
            raise
        taken = sum(result.delivered for result in results)
        self._counting.sent(taken, len(results) - taken)
        return results

    def broadcast(
        self, sender: AgentId, message: AgentMessage, recipients: Sequence[AgentId]
    ) -> Plan[list[MessageResult]]:
        results: list[MessageResult] = []
        for recipient in recipients:
            try:
                results += yield from self.send(sender, recipient, [message])
            except RedisTrouble as error:
                failure = str(MessageCoordinatorError(f"send to {recipient}", told(error)))
                results.append(
                    MessageResult(message_id=message.message_id, delivered=False, error=failure)
                )
        return results

    def _call(
        self,
        recipient: AgentId,
        messages: Sequence[AgentMessage],
        times: tuple[int, int],
        written: letters.Writing,
    ) -> Call:
        name = endpoint(recipient)
        if len(messages) == 1 and times == (0, 0):
            (one,) = messages
            if one.priority is MessagePriority.NORMAL:
                said = (one.message_type.value, one.message_id, written.body(one))
                return self._calling.call(_SEND_ONE, recipient, name, *said)
        return self._calling.call(_SEND, recipient, name, *times, *written.texts(messages))

    def _taken(self, recipient: AgentId, call: Call) -> Plan[bytes]:
        """A digit for each message."""
        answers: bytes = yield call
        if _FULL not in answers:
            return answers
        _, dead, _ = yield self._calling.recover(recipient)
        self._counting.buried(dead)
        if not dead:
            return answers
        # What had expired made room. What was taken in before is a duplicate now.
        again = yield call
        return bytes(old if old == _TAKEN else new for old, new in zip(answers, again, strict=True))


def _result(message: AgentMessage, answer: int) -> MessageResult:
    refusal = _REFUSALS.get(answer)
    fields = {
        "message_id": message.message_id,
        "delivered": refusal is None,
        "error": refusal,
        "duplicate": answer == _DUPLICATE,
    }
    return made(MessageResult, fields)

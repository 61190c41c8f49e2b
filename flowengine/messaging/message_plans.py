"""Plans for messages, from sending to acknowledgement or dead letter.

Invariant: a message is in exactly one of three places: the schedule of its priority, reserved under
a token, or the dead letters. Each script moves it atomically. The list `queue` has the ids of the
messages in the first two places; `queue_size` limits its length.
"""

from __future__ import annotations

import math
import random
import secrets
import time
from asyncio import CancelledError
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from flowengine.messaging.codec import (
    Rejected,
    decode_dead_letters,
    decode_received,
    new_token,
    sanitized,
    token_ranges,
)
from flowengine.messaging.drivers import Members, Plan, Wait
from flowengine.messaging.keys import BATCH_LIMIT, agent_of, endpoint
from flowengine.messaging.lua import Argument, Call, Script, microseconds
from flowengine.messaging.models import (
    AgentId,
    CoordinatorConfig,
    DeadLetter,
    FailureType,
    MessagePriority,
    MessageSubscription,
    MessageType,
    QueueDepths,
    ReceivedMessage,
)
from flowengine.messaging.send_plans import SendPlans

_RECEIVE = Script.load("receive")
_RELEASE = Script.load("release")
_ACK = Script.load("ack")
_NACK = Script.load("nack")
_EXTEND = Script.load("extend")
_DEPTHS = Script.load("depths")
_CONFIGURE = Script.load("configure")
_SUBSCRIBE = Script.load("subscribe")
_DEAD_LETTERS = Script.load("dead_letters")
_REQUEUE = Script.load("requeue")
_PURGE = Script.load("purge")

(_SETTLED,) = b"1"
#: Response of `receive.lua`: expired reservations or messages must be recovered first.
_EXPIRED = -2
#: Seconds within which a cancelled receive that was sent already reaches Redis.
_CANCELLED_SECONDS = 10
_Item = TypeVar("_Item")


class MessagePlans(SendPlans):
    """Plans for the messages under one key prefix."""

    # --- receiving ---

    def receive(
        self, agent_id: AgentId, visibility_timeout: float = 5, *, timeout: float | None = None
    ) -> Plan[ReceivedMessage | None]:
        """Reserve the next message; wait up to `timeout` seconds for one."""
        received = yield from self.receive_batch(agent_id, 1, visibility_timeout, timeout=timeout)
        return received[0] if received else None

    def receive_batch(
        self,
        agent_id: AgentId,
        max_messages: int,
        visibility_timeout: float = 5,
        *,
        timeout: float | None = None,
    ) -> Plan[list[ReceivedMessage]]:
        """Reserve up to `max_messages` (500 at most); wait up to `timeout` for the first."""
        call = self._calls.call
        visibility = microseconds(visibility_timeout, "visibility_timeout")
        if timeout is not None and math.isnan(timeout):
            raise ValueError("timeout must be a number of seconds or None, not nan")
        limit = max(min(max_messages, BATCH_LIMIT), 0)
        until = time.monotonic() + (timeout or 0.0)
        usual = () if timeout is None else ("wait",)
        token, mode = new_token(), usual
        while True:
            decoded: list[ReceivedMessage | Rejected] | None = []
            try:
                response = yield call(_RECEIVE, agent_id, token, visibility, limit, *mode)
                if not isinstance(response, int):
                    decoded = decode_received(token, response)
                    yield from self._dead_letter_rejected(agent_id, decoded or ())
            except CancelledError:
                name = token if limit == 1 else f"{token}+"
                yield call(_RELEASE, agent_id, name, _CANCELLED_SECONDS)
                raise
            if decoded is None:
                mode = ("apart",)  # idempotent: the same token returns the same messages
            elif messages := [one for one in decoded if isinstance(one, ReceivedMessage)]:
                return messages
            elif decoded:
                token, mode = new_token(), usual
            elif response == _EXPIRED:
                yield from self.recover_pending(agent_id)
            else:
                left = until - time.monotonic()
                if left <= 0:
                    return []
                mode = usual
                (wakeup,) = self._calls.keys.named(["wakeup"], endpoint(agent_id))
                yield Wait(wakeup, left if response < 0 else min(left, response / 1_000_000))

    def _dead_letter_rejected(
        self, agent_id: AgentId, decoded: Sequence[ReceivedMessage | Rejected]
    ) -> Plan[None]:
        for one in decoded:
            if isinstance(one, Rejected):
                failure = FailureType.PERMANENT.value
                yield self._calls.call(_NACK, agent_id, one.token, failure, one.problem, 0)
                self._metrics.dead_lettered(1)

    # --- settling ---

    def ack(self, agent_id: AgentId, token: str) -> Plan[bool]:
        """Acknowledge a processed message; False, without effect, if its reservation ended."""
        (settled,) = yield from self.ack_batch(agent_id, [token])
        return settled

    def ack_batch(self, agent_id: AgentId, tokens: Sequence[str]) -> Plan[list[bool]]:
        """Acknowledge several messages; the results are in the same order."""
        settled: list[bool] = []
        for batch in _chunks(tokens):
            codes = yield self._calls.call(_ACK, agent_id, token_ranges(batch))
            settled += [code == _SETTLED for code in codes]
        return settled

    def nack(
        self,
        agent_id: AgentId,
        token: str,
        failure: FailureType = FailureType.TRANSIENT,
        error: str | None = None,
    ) -> Plan[bool]:
        """Schedule a retry of a message, or make it a dead letter; False as for `ack`."""
        arguments = (sanitized(token), failure.value, error or "", random.random())
        outcome, backoff = yield self._calls.call(_NACK, agent_id, *arguments)
        if outcome:
            self._metrics.nacked(backoff / 1_000_000 if outcome == 1 else None)
        return bool(outcome)

    def extend(self, agent_id: AgentId, token: str, visibility_timeout: float) -> Plan[bool]:
        """Set the deadline to `visibility_timeout` seconds from now; False as for `ack`."""
        visibility = microseconds(visibility_timeout, "visibility_timeout")
        deadline = yield self._calls.call(_EXTEND, agent_id, sanitized(token), visibility)
        return bool(deadline)

    def recover_pending(self, agent_id: AgentId | None = None) -> Plan[int]:
        """Return messages with an expired reservation to the queue.

        `receive` does this for its own agent.
        """
        if agent_id is None:
            (index,) = self._calls.keys.named(["endpoints"], "")
            names = yield Members(index)
            agents = [agent_of(name.decode()) for name in sorted(names)]
        else:
            agents = [agent_id]
        recovered = 0
        for agent in agents:
            more = 1
            while more:
                returned, dead, more = yield self._calls.recover(agent)
                recovered += returned
                self._metrics.dead_lettered(dead)
        return recovered

    # --- inspection ---

    def depths(self, agent_id: AgentId) -> Plan[QueueDepths]:
        """The number of messages of an agent by state, and the age of the oldest."""
        response = yield self._calls.call(_DEPTHS, agent_id)
        high, normal, low, delayed, reserved, total, oldest, dead, dropped = response
        levels = (MessagePriority.HIGH, MessagePriority.NORMAL, MessagePriority.LOW)
        return QueueDepths(
            ready=dict(zip(levels, (high, normal, low), strict=True)),
            delayed=delayed,
            reserved=reserved,
            total=total,
            oldest_age=None if oldest < 0 else oldest / 1_000_000,
            dead=dead,
            dead_dropped=dropped,
        )

    # --- dead letters ---

    def dead_letters(
        self, agent_id: AgentId, *, first: int = 0, limit: int = 100
    ) -> Plan[list[DeadLetter]]:
        """Dead letters, the oldest first."""
        response = yield self._calls.call(_DEAD_LETTERS, agent_id, first, first + limit - 1)
        return decode_dead_letters(response)

    def dead_letter(self, agent_id: AgentId, message_id: str) -> Plan[DeadLetter | None]:
        """The dead letter with this id."""
        response = yield self._calls.call(_DEAD_LETTERS, agent_id, message_id)
        return next(iter(decode_dead_letters(response)), None)

    def requeue_dead_letters(
        self, agent_id: AgentId, message_ids: Sequence[str] | None = None, *, limit: int = 1000
    ) -> Plan[int]:
        """Requeue these dead letters, or the oldest, while there is room; their number."""
        count = 0
        for batch in _selected(message_ids):
            count += yield self._calls.call(_REQUEUE, agent_id, endpoint(agent_id), limit, *batch)
        return count

    def purge_dead_letters(
        self, agent_id: AgentId, message_ids: Sequence[str] | None = None, *, limit: int = 1000
    ) -> Plan[int]:
        """Delete these dead letters, or the oldest; their number."""
        count = 0
        for batch in _selected(message_ids):
            count += yield self._calls.call(_PURGE, agent_id, limit, *batch)
        return count

    # --- configuration and subscriptions ---

    def configure(
        self,
        *,
        queue_size: int | None = None,
        retry_attempts: int | None = None,
        backoff_base: float | None = None,
        backoff_factor: float | None = None,
        backoff_max: float | None = None,
        backoff_jitter: float | None = None,
        fairness: int | None = None,
        dedup_window: float | None = None,
        dlq_size: int | None = None,
    ) -> Plan[None]:
        """Change the `CoordinatorConfig` of all processes with this key prefix."""
        changes = {name: value for name, value in locals().items() if name != "self"}
        yield from self._configure(changes)

    def configuration(self) -> Plan[CoordinatorConfig]:
        """The current configuration."""
        return self._configure({})

    def _configure(self, changes: Mapping[str, float | None]) -> Plan[CoordinatorConfig]:
        given = {name: value for name, value in changes.items() if value is not None}
        # Validated before anything is written: either all values change, or none.
        valid = CoordinatorConfig.model_validate(given).model_dump(include=set(given))
        arguments: list[Argument] = [part for pair in valid.items() for part in pair]
        stored = yield Call(
            _CONFIGURE, self._calls.keys.named(_CONFIGURE.keys, ""), tuple(arguments)
        )
        texts = [text.decode() for text in stored]
        # A newer version may have stored settings that this one does not have.
        config = {
            name: value
            for name, value in zip(texts[::2], texts[1::2], strict=True)
            if name in CoordinatorConfig.model_fields
        }
        return CoordinatorConfig.model_validate(config)

    def subscribe(self, subscription: MessageSubscription) -> Plan[bool]:
        return self._subscribe(subscription, subscription.message_types)

    def unsubscribe(self, subscription: MessageSubscription) -> Plan[bool]:
        """End a subscription; an agent without subscriptions takes all types."""
        return self._subscribe(subscription, ())

    def _subscribe(
        self, subscription: MessageSubscription, types: Sequence[MessageType]
    ) -> Plan[bool]:
        arguments = (subscription.subscription_id, *(kind.value for kind in types))
        changed = yield self._calls.call(_SUBSCRIBE, subscription.agent_id, *arguments)
        return bool(changed)


def subscription_for(agent_id: AgentId, message_types: list[MessageType]) -> MessageSubscription:
    return MessageSubscription(
        subscription_id=f"sub_{secrets.token_hex(6)}",
        agent_id=agent_id,
        message_types=message_types,
    )


def _chunks(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    return (items[start : start + BATCH_LIMIT] for start in range(0, len(items), BATCH_LIMIT))


def _selected(message_ids: Sequence[str] | None) -> Iterator[Sequence[str]]:
    """Chunks of ids; for None one empty chunk, which selects the oldest."""
    return iter([()]) if message_ids is None else _chunks(message_ids)

"""Messages of one agent, from their receipt to their end: the plans.

A message is in one of three places: in the schedule of its priority, reserved under a token, or
among the dead letters. Every script moves it from one to another in one step. The list `queue`
names all that are in the first two; its length is what `queue_size` limits.
"""

from __future__ import annotations

import random
import secrets
import time
from asyncio import CancelledError
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from flowengine.messaging import handing, letters
from flowengine.messaging.calling import MOST_AT_ONCE, Calling
from flowengine.messaging.counting import Counting
from flowengine.messaging.driving import Argument, Call, Members, Plan, Wait
from flowengine.messaging.keys import agent_of, endpoint
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
from flowengine.messaging.scripting import Script
from flowengine.messaging.tokens import known, new_token, runs

_RECEIVE = Script.load("receive")
_ACK = Script.load("ack")
_NACK = Script.load("nack")
_RELEASE = Script.load("release")
_EXTEND = Script.load("extend")
_DEPTHS = Script.load("depths")
_CONFIGURE = Script.load("configure")
_SUBSCRIBE = Script.load("subscribe")
_DEAD_LETTERS = Script.load("dead_letters")
_REQUEUE = Script.load("requeue")
_PURGE = Script.load("purge")

(_SETTLED,) = b"1"
#: What `receive.lua` answers when something has to be recovered first.
_EXPIRED = -2
#: Seconds within which a cancelled receive that is still on its way reaches Redis.
_CANCELLED_SECONDS = 10
_Item = TypeVar("_Item")


class Queueing:
    """Plans for the messages under one key prefix."""

    def __init__(self, calling: Calling, counting: Counting) -> None:
        self._calling, self._counting = calling, counting

    # --- receiving ---

    def receive(
        self, agent_id: AgentId, most: int, visibility_timeout: float, timeout: float | None
    ) -> Plan[list[ReceivedMessage]]:
        call, visibility = self._calling.call, letters.microseconds(visibility_timeout)
        most = max(min(most, MOST_AT_ONCE), 0)
        until = time.monotonic() + (timeout or 0.0)
        usual = () if timeout is None else ("wait",)
        token, asked = new_token(), usual
        while True:
            found: list[ReceivedMessage | handing.Unfit] | None = []
            try:
                answer = yield call(_RECEIVE, agent_id, token, visibility, most, *asked)
                if not isinstance(answer, int):
                    found = handing.received(token, answer)
                    yield from self._bury_unfit(agent_id, found or ())
            except CancelledError:
                name = token if most == 1 else f"{token}+"
                yield call(_RELEASE, agent_id, name, _CANCELLED_SECONDS)
                raise
            if found is None:
                asked = ("apart",)  # the same token is given the same messages
            elif good := [one for one in found if isinstance(one, ReceivedMessage)]:
                return good
            elif found:
                token, asked = new_token(), usual
            elif answer == _EXPIRED:
                yield from self.recover(agent_id)
            else:
                left = until - time.monotonic()
                if left <= 0:
                    return []
                asked = usual
                (bell,) = self._calling.keys.named(["bell"], endpoint(agent_id))
                yield Wait(bell, left if answer < 0 else min(left, answer / 1_000_000))

    def _bury_unfit(
        self, agent_id: AgentId, found: Sequence[ReceivedMessage | handing.Unfit]
    ) -> Plan[None]:
        for one in found:
            if isinstance(one, handing.Unfit):
                failure = FailureType.PERMANENT.value
                yield self._calling.call(_NACK, agent_id, one.token, failure, one.problem, 0)
                self._counting.buried(1)

    # --- settling ---

    def ack(self, agent_id: AgentId, tokens: Sequence[str]) -> Plan[list[bool]]:
        settled: list[bool] = []
        for some in _chunks(tokens):
            answers = yield self._calling.call(_ACK, agent_id, runs(some))
            settled += [answer == _SETTLED for answer in answers]
        return settled

    def nack(
        self, agent_id: AgentId, token: str, failure: FailureType, error: str | None
    ) -> Plan[bool]:
        arguments = (known(token), failure.value, error or "", random.random())
        outcome, wait = yield self._calling.call(_NACK, agent_id, *arguments)
        if outcome:
            self._counting.nacked(wait / 1_000_000 if outcome == 1 else None)
        return bool(outcome)

    def extend(self, agent_id: AgentId, token: str, visibility_timeout: float) -> Plan[bool]:
        visibility = letters.microseconds(visibility_timeout)
        deadline = yield self._calling.call(_EXTEND, agent_id, known(token), visibility)
        return bool(deadline)

    def recover(self, agent_id: AgentId | None) -> Plan[int]:
        if agent_id is None:
            (index,) = self._calling.keys.named(["endpoints"], "")
            found = yield Members(index)
            agents = [agent_of(name.decode()) for name in sorted(found)]
        else:
            agents = [agent_id]
        recovered = 0
        for agent in agents:
            more = 1
            while more:
                returned, dead, more = yield self._calling.recover(agent)
                recovered += returned
                self._counting.buried(dead)
        return recovered

    # --- looking ---

    def depths(self, agent_id: AgentId) -> Plan[QueueDepths]:
        answer = yield self._calling.call(_DEPTHS, agent_id)
        high, normal, low, delayed, reserved, total, oldest, dead, dropped = answer
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

    def dead_letters(self, agent_id: AgentId, first: int, limit: int) -> Plan[list[DeadLetter]]:
        answer = yield self._calling.call(_DEAD_LETTERS, agent_id, first, first + limit - 1)
        return letters.dead_letters(answer)

    def dead_letter(self, agent_id: AgentId, message_id: str) -> Plan[DeadLetter | None]:
        answer = yield self._calling.call(_DEAD_LETTERS, agent_id, message_id)
        return next(iter(letters.dead_letters(answer)), None)

    def requeue(
        self, agent_id: AgentId, message_ids: Sequence[str] | None, limit: int
    ) -> Plan[int]:
        count = 0
        for some in _chosen(message_ids):
            count += yield self._calling.call(_REQUEUE, agent_id, endpoint(agent_id), limit, *some)
        return count

    def purge(self, agent_id: AgentId, message_ids: Sequence[str] | None, limit: int) -> Plan[int]:
        count = 0
        for some in _chosen(message_ids):
            count += yield self._calling.call(_PURGE, agent_id, limit, *some)
        return count

    # --- configuration and subscriptions ---

    def configure(self, changes: Mapping[str, float | None]) -> Plan[CoordinatorConfig]:
        given = {name: value for name, value in changes.items() if value is not None}
        # Validated before anything is written: all of it is changed, or nothing.
        checked = CoordinatorConfig.model_validate(given).model_dump(include=set(given))
        arguments: list[Argument] = [part for pair in checked.items() for part in pair]
        stored = yield Call(
            _CONFIGURE, self._calling.keys.named(_CONFIGURE.keys, ""), tuple(arguments)
        )
        texts = [text.decode() for text in stored]
        known = {
            name: value
            for name, value in zip(texts[::2], texts[1::2], strict=True)
            if name in CoordinatorConfig.model_fields
        }
        return CoordinatorConfig.model_validate(known)

    def subscribe(self, subscription: MessageSubscription) -> Plan[bool]:
        types = (kind.value for kind in subscription.message_types)
        arguments = (subscription.subscription_id, *types)
        answer = yield self._calling.call(_SUBSCRIBE, subscription.agent_id, *arguments)
        return bool(answer)

    def unsubscribe(self, subscription: MessageSubscription) -> Plan[bool]:
        arguments = (subscription.subscription_id,)
        answer = yield self._calling.call(_SUBSCRIBE, subscription.agent_id, *arguments)
        return bool(answer)


def subscription_for(agent_id: AgentId, message_types: list[MessageType]) -> MessageSubscription:
    return MessageSubscription(
        subscription_id=f"sub_{secrets.token_hex(6)}",
        agent_id=agent_id,
        message_types=message_types,
    )


def _chunks(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    return (items[start : start + MOST_AT_ONCE] for start in range(0, len(items), MOST_AT_ONCE))


def _chosen(message_ids: Sequence[str] | None) -> Iterator[Sequence[str]]:
    """None: one call that names nobody, for the oldest."""
    return iter([()]) if message_ids is None else _chunks(message_ids)

"""Messages from one agent to another: the plans that the coordinators carry out.

A message is in one of three places: in the schedule of its priority, reserved under a token, or
among the dead letters. Every script moves it from one to another in one step. The list `queue`
names all that are in the first two; its length is what `queue_size` limits.
"""

from __future__ import annotations

import random
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from flowengine.messaging import letters
from flowengine.messaging.counting import Counting
from flowengine.messaging.driving import Argument, Call, Members, Plan, Wait
from flowengine.messaging.keys import Keys, agent_of, endpoint
from flowengine.messaging.models import (
    AgentId,
    AgentMessage,
    CoordinatorConfig,
    DeadLetter,
    FailureType,
    MessagePriority,
    MessageResult,
    MessageSubscription,
    MessageType,
    QueueDepths,
    ReceivedMessage,
)
from flowengine.messaging.scripting import Script

#: Most messages that one script handles: nobody else is served meanwhile.
MOST_AT_ONCE = 500

_SEND = Script.load("send")
_SEND_ONE = Script.load("send_one")
_RECEIVE = Script.load("receive")
_ACK = Script.load("ack")
_NACK = Script.load("nack")
_EXTEND = Script.load("extend")
_RECOVER = Script.load("recover")
_DEPTHS = Script.load("depths")
_CONFIGURE = Script.load("configure")
_SUBSCRIBE = Script.load("subscribe")
_DEAD_LETTERS = Script.load("dead_letters")
_REQUEUE = Script.load("requeue")
_PURGE = Script.load("purge")

_TAKEN, _DUPLICATE, _FULL, _NOT_SUBSCRIBED = b"1234"
_REFUSALS = {_FULL: "queue full", _NOT_SUBSCRIBED: "not subscribed"}
(_SETTLED,) = b"1"
#: What `receive.lua` answers when something has to be recovered first.
_EXPIRED = -2
_TOKEN = re.compile(r"(res_[0-9a-f]{16})(?:-([2-9]|[1-9][0-9]{1,2}))?")
_Item = TypeVar("_Item")


class Queueing:
    """Plans for the messages under one key prefix."""

    def __init__(self, keys: Keys, counting: Counting) -> None:
        self._keys, self._counting = keys, counting
        self._known: dict[tuple[str, AgentId], tuple[bytes, ...]] = {}

    # --- sending ---

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
        for some in _chunks(messages):
            if times == (0, 0) and len(some) == 1 and some[0].priority is MessagePriority.NORMAL:
                (one,) = some
                said = (one.message_type.value, one.message_id, written.body(one))
                call = self._call(_SEND_ONE, recipient, (endpoint(recipient), *said))
            else:
                said = written.texts(some)
                call = self._call(_SEND, recipient, (endpoint(recipient), *times, *said))
            answers = yield call
            if _FULL in answers and (yield from self._recovered(recipient)):
                # What had expired made room. What was taken in before is a duplicate now.
                again = yield call
                answers = bytes(
                    old if old == _TAKEN else new for old, new in zip(answers, again, strict=True)
                )
            results += map(_result, some, answers)
        taken = sum(result.delivered for result in results)
        self._counting.sent(taken, len(results) - taken)
        return results

    def _recovered(self, agent_id: AgentId) -> Plan[bool]:
        """Whether anything that had expired is out of the way."""
        _, dead, _ = yield self._call(_RECOVER, agent_id, (endpoint(agent_id), MOST_AT_ONCE))
        self._counting.buried(dead)
        return bool(dead)

    # --- receiving ---

    def receive(
        self, agent_id: AgentId, most: int, visibility_timeout: float, timeout: float | None
    ) -> Plan[list[ReceivedMessage]]:
        visibility = letters.microseconds(visibility_timeout)
        most = min(most, MOST_AT_ONCE)
        until = time.monotonic() + (timeout or 0.0)
        usual = () if timeout is None else ("wait",)
        token, asked = _new_token(), usual
        while True:
            answer = yield self._call(_RECEIVE, agent_id, (token, visibility, most, *asked))
            if answer == _EXPIRED:
                yield from self.recover(agent_id)
                continue
            if isinstance(answer, int):
                left = until - time.monotonic()
                if left <= 0:
                    return []
                (bell,) = self._keys.named(["bell"], endpoint(agent_id))
                yield Wait(bell, left if answer < 0 else min(left, answer / 1_000_000))
                continue
            found = letters.received(token, answer)
            if found is None:
                asked = ("apart",)  # the same token is given the same messages
                continue
            good = [one for one in found if isinstance(one, ReceivedMessage)]
            if len(good) < len(found):
                yield from self._bury_unfit(agent_id, found)
            if good:
                return good
            token, asked = _new_token(), usual

    def _bury_unfit(
        self, agent_id: AgentId, found: Sequence[ReceivedMessage | letters.Unfit]
    ) -> Plan[None]:
        for one in found:
            if isinstance(one, letters.Unfit):
                failure = FailureType.PERMANENT.value
                yield self._call(_NACK, agent_id, (one.token, failure, one.problem, 0))
                self._counting.buried(1)

    # --- settling ---

    def ack(self, agent_id: AgentId, tokens: Sequence[str]) -> Plan[list[bool]]:
        settled: list[bool] = []
        for some in _chunks(tokens):
            answers = yield self._call(_ACK, agent_id, (_runs(some),))
            settled += [answer == _SETTLED for answer in answers]
        return settled

    def nack(
        self, agent_id: AgentId, token: str, failure: FailureType, error: str | None
    ) -> Plan[bool]:
        arguments = (_known(token), failure.value, error or "", random.random())
        outcome, wait = yield self._call(_NACK, agent_id, arguments)
        if outcome:
            self._counting.nacked(wait / 1_000_000 if outcome == 1 else None)
        return bool(outcome)

    def extend(self, agent_id: AgentId, token: str, visibility_timeout: float) -> Plan[bool]:
        visibility = letters.microseconds(visibility_timeout)
        deadline = yield self._call(_EXTEND, agent_id, (_known(token), visibility))
        return bool(deadline)

    def recover(self, agent_id: AgentId | None) -> Plan[int]:
        if agent_id is None:
            (index,) = self._keys.named(["endpoints"], "")
            found = yield Members(index)
            agents = [agent_of(name.decode()) for name in sorted(found)]
        else:
            agents = [agent_id]
        recovered = 0
        for agent in agents:
            more = 1
            while more:
                arguments = (endpoint(agent), MOST_AT_ONCE)
                returned, dead, more = yield self._call(_RECOVER, agent, arguments)
                recovered += returned
                self._counting.buried(dead)
        return recovered

    # --- looking ---

    def depths(self, agent_id: AgentId) -> Plan[QueueDepths]:
        answer = yield self._call(_DEPTHS, agent_id)
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
        answer = yield self._call(_DEAD_LETTERS, agent_id, (first, first + limit - 1))
        return letters.dead_letters(answer)

    def dead_letter(self, agent_id: AgentId, message_id: str) -> Plan[DeadLetter | None]:
        answer = yield self._call(_DEAD_LETTERS, agent_id, (message_id,))
        return next(iter(letters.dead_letters(answer)), None)

    def requeue(
        self, agent_id: AgentId, message_ids: Sequence[str] | None, limit: int
    ) -> Plan[int]:
        count = 0
        for some in _chosen(message_ids):
            count += yield self._call(_REQUEUE, agent_id, (endpoint(agent_id), limit, *some))
        return count

    def purge(self, agent_id: AgentId, message_ids: Sequence[str] | None, limit: int) -> Plan[int]:
        count = 0
        for some in _chosen(message_ids):
            count += yield self._call(_PURGE, agent_id, (limit, *some))
        return count

    # --- configuration and subscriptions ---

    def configure(self, changes: Mapping[str, float | None]) -> Plan[CoordinatorConfig]:
        given = {name: value for name, value in changes.items() if value is not None}
        # Validated before anything is written: all of it is changed, or nothing.
        checked = CoordinatorConfig.model_validate(given).model_dump(include=set(given))
        arguments: list[Argument] = [part for pair in checked.items() for part in pair]
        stored = yield Call(_CONFIGURE, self._keys.named(_CONFIGURE.keys, ""), tuple(arguments))
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
        answer = yield self._call(_SUBSCRIBE, subscription.agent_id, arguments)
        return bool(answer)

    def unsubscribe(self, subscription: MessageSubscription) -> Plan[bool]:
        arguments = (subscription.subscription_id,)
        answer = yield self._call(_SUBSCRIBE, subscription.agent_id, arguments)
        return bool(answer)

    def _call(
        self, script: Script, agent_id: AgentId, arguments: tuple[Argument, ...] = ()
    ) -> Call:
        known = self._known.get((script.name, agent_id))
        if known is None:
            if len(self._known) > 10_000:  # agents come and go
                self._known.clear()
            known = self._keys.named(script.keys, endpoint(agent_id))
            self._known[script.name, agent_id] = known
        return Call(script, known, arguments)


def subscription_for(agent_id: AgentId, message_types: list[MessageType]) -> MessageSubscription:
    return MessageSubscription(
        subscription_id=f"sub_{secrets.token_hex(6)}",
        agent_id=agent_id,
        message_types=message_types,
    )


def _result(message: AgentMessage, answer: int) -> MessageResult:
    refusal = _REFUSALS.get(answer)
    return MessageResult(
        message_id=message.message_id,
        delivered=refusal is None,
        error=refusal,
        duplicate=answer == _DUPLICATE,
    )


def _new_token() -> str:
    return f"res_{random.getrandbits(64):016x}"


def _known(token: str) -> str:
    """What cannot be a token is none, and may have spaces of its own."""
    return token if _TOKEN.fullmatch(token) else "?"


def _runs(tokens: Sequence[str]) -> str:
    """Tokens as `ack.lua` wants them: those of one batch in their order are named together."""
    if len(tokens) == 1:
        return _known(tokens[0])
    runs: list[str] = []
    batch, first, last, following = "", 0, 0, ""
    for token in tokens:
        if token == following:
            last += 1
        else:
            if batch:
                runs.append(f"{batch} {first} {last} ")
            found = _TOKEN.fullmatch(token)
            batch, first = (found[1], int(found[2] or 1)) if found else ("?", 1)
            last = first
        following = f"{batch}-{last + 1}"
    return "".join([*runs, f"{batch} {first} {last} "])


def _chunks(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    return (items[start : start + MOST_AT_ONCE] for start in range(0, len(items), MOST_AT_ONCE))


def _chosen(message_ids: Sequence[str] | None) -> Iterator[Sequence[str]]:
    """None: one call that names nobody, for the oldest."""
    return iter([()]) if message_ids is None else _chunks(message_ids)

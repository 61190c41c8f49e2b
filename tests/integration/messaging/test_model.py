"""The coordinator compared with a small model over random sequences of operations.

Durations are zero or an hour, so the model needs no clock: a reservation of zero seconds has
expired when the next script runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import ClassVar

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flowengine.messaging import FailureType, MessagePriority, SyncMessageCoordinator
from tests.examples_drawn import AT_RANDOM
from tests.integration.messaging.samples import ASKER, HIGH, LOW, NORMAL, WORKER, reserved, sample
from tests.servers import RedisServer

NAMES = st.integers(0, 5)


@dataclass
class Model:
    """The place of each message. `reserved` has unsettled reservations only."""

    size: int = 3
    retries: int = 1
    waits: bool = False
    priority: dict[str, MessagePriority] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    ready: list[str] = field(default_factory=list)
    delayed: list[str] = field(default_factory=list)
    reserved: dict[str, tuple[str, bool]] = field(default_factory=dict)
    dead: list[str] = field(default_factory=list)

    def live(self) -> list[str]:
        return [*self.ready, *self.delayed, *(name for name, _ in self.reserved.values())]

    def send(self, name: str, priority: MessagePriority, delayed: bool) -> tuple[bool, bool]:
        if name in self.live():
            return True, True
        if len(self.live()) >= self.size:
            self.reclaim()  # messages that expired too often make room
        if len(self.live()) >= self.size:
            return False, False
        self.priority[name], self.attempts[name] = priority, 0
        (self.delayed if delayed else self.ready).append(name)
        return True, False

    def reclaim(self) -> int:
        returned = 0
        for token, (name, expired) in list(self.reserved.items()):
            if expired:
                del self.reserved[token]
                if self.attempts[name] > self.retries:
                    self.dead_letter(name)
                else:
                    self.ready.append(name)
                    returned += 1
        return returned

    def receive(self) -> str | None:
        self.reclaim()
        return self.take()

    def take(self) -> str | None:
        # Sorting is stable: equal priorities keep their order.
        name = next(iter(sorted(self.ready, key=lambda name: -self.priority[name])), None)
        if name is not None:
            self.ready.remove(name)
            self.attempts[name] += 1
        return name

    def holds(self, token: str) -> bool:
        return token in self.reserved and not self.reserved[token][1]

    def dead_letter(self, name: str) -> None:
        if name in self.dead:
            self.dead.remove(name)
        self.dead.append(name)


class Coordinators(RuleBasedStateMachine):
    client: ClassVar[redis.Redis]

    @initialize()
    def begin(self) -> None:
        self.client.flushall()
        self.real, self.model = SyncMessageCoordinator(self.client), Model()
        self.tokens: list[str] = ["res_unknown"]
        self.real.configure(queue_size=3, retry_attempts=1, backoff_base=0, dedup_window=0)

    @rule(name=NAMES, priority=st.sampled_from([HIGH, NORMAL, LOW]), delayed=st.booleans())
    def send(self, name: int, priority: MessagePriority, delayed: bool) -> None:
        message = sample(name, priority=priority)
        result = self.real.send_message(ASKER, WORKER, message, delay=3600 if delayed else 0)
        expected = self.model.send(message.message_id, priority, delayed)
        assert (result.delivered, result.duplicate) == expected

    @rule(lost=st.booleans())
    def receive(self, lost: bool) -> None:
        received = self.real.receive(WORKER, visibility_timeout=0 if lost else 3600)
        name = self.model.receive()
        assert (received and received.message.message_id) == name
        if received is not None and name is not None:
            assert received.queue_message.delivery_attempts == self.model.attempts[name] - 1
            self.model.reserved[received.token] = (name, lost)
            self.tokens.append(received.token)

    @rule(most=st.integers(2, 4), lost=st.booleans())
    def receive_batch(self, most: int, lost: bool) -> None:
        batch = self.real.receive_batch(WORKER, most, visibility_timeout=0 if lost else 3600)
        self.model.reclaim()
        names = list(takewhile(bool, (self.model.take() for _ in range(most))))
        assert [one.message.message_id for one in batch] == names
        for received, name in zip(batch, names, strict=True):
            assert received.queue_message.delivery_attempts == self.model.attempts[name] - 1
            self.model.reserved[received.token] = (name, lost)
            self.tokens.append(received.token)

    @rule(data=st.data())
    def ack_batch(self, data: st.DataObject) -> None:
        tokens = data.draw(st.lists(st.sampled_from(self.tokens), max_size=6))
        for token, settled in zip(tokens, self.real.ack_batch(WORKER, tokens), strict=True):
            assert settled == self.model.holds(token)
            if settled:
                del self.model.reserved[token]

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.tokens))
        assert self.real.ack(WORKER, token) == self.model.holds(token)
        if self.model.holds(token):
            del self.model.reserved[token]

    @rule(data=st.data(), failure=st.sampled_from(FailureType))
    def nack(self, data: st.DataObject, failure: FailureType) -> None:
        token = data.draw(st.sampled_from(self.tokens))
        assert self.real.nack(WORKER, token, failure, "no") == self.model.holds(token)
        if self.model.holds(token):
            name, _ = self.model.reserved.pop(token)
            spent = self.model.attempts[name] > self.model.retries
            if failure is FailureType.PERMANENT or spent:
                self.model.dead_letter(name)
            else:
                (self.model.delayed if self.model.waits else self.model.ready).append(name)

    @rule(data=st.data(), lost=st.booleans())
    def extend(self, data: st.DataObject, lost: bool) -> None:
        token = data.draw(st.sampled_from(self.tokens))
        done = self.real.extend(WORKER, token, 0 if lost else 3600)
        assert done == self.model.holds(token)
        if done:
            # It expires after all reservations that have expired already.
            name, _ = self.model.reserved.pop(token)
            self.model.reserved[token] = (name, lost)

    @rule()
    def recover(self) -> None:
        assert self.real.recover_pending() == self.model.reclaim()

    @precondition(lambda self: self.model.dead)
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.model.dead))
        room = len(self.model.live()) < self.model.size
        free = name not in self.model.live()
        assert self.real.requeue_dead_letters(WORKER, [name]) == int(room and free)
        if room and free:
            self.model.dead.remove(name)
            self.model.attempts[name] = 0
            letter_priority = self.priority_of_dead_letter(name)
            self.model.priority[name] = letter_priority
            self.model.ready.append(name)

    def priority_of_dead_letter(self, name: str) -> MessagePriority:
        """Its stored priority: a later message with the same id may have had another."""
        for level in (HIGH, NORMAL, LOW):
            if self.client.zscore(f"ao:sched:worker:1:prio:{level.value}", name) is not None:
                return level
        raise AssertionError(f"{name} is in no schedule")

    @precondition(lambda self: self.model.dead)
    @rule(data=st.data())
    def purge(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.model.dead))
        assert self.real.purge_dead_letters(WORKER, [name]) == 1
        self.model.dead.remove(name)

    @rule(size=st.integers(1, 5), retries=st.integers(0, 2), waits=st.booleans())
    def configure(self, size: int, retries: int, waits: bool) -> None:
        wait = 3600 if waits else 0
        self.real.configure(
            queue_size=size, retry_attempts=retries, backoff_base=wait, backoff_max=wait
        )
        self.model.size, self.model.retries, self.model.waits = size, retries, waits

    @invariant()
    def every_message_is_where_the_model_has_it(self) -> None:
        if not hasattr(self, "model"):
            return
        depths = self.real.depths(WORKER)
        assert sum(depths.ready.values()) == len(self.model.ready)
        assert depths.delayed == len(self.model.delayed)
        assert depths.reserved == len(self.model.reserved)
        assert depths.total == len(self.model.live())
        dead = [letter.message_id for letter in self.real.dead_letters(WORKER)]
        assert dead == self.model.dead
        expected = sorted(name for name, _ in self.model.reserved.values())
        assert sorted(reserved(self.client)) == expected
        stored = self.client.hkeys("ao:messages:worker:1")
        listed = self.client.lrange("ao:queue:worker:1", 0, -1)
        assert sorted(stored) == sorted(listed) == sorted(self.model.live())


@pytest.fixture
def in_redis(redis_server: RedisServer) -> Iterator[type[Coordinators]]:
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        Coordinators.client = client
        yield Coordinators


def test_any_sequence_of_operations_agrees_with_the_model(
    in_redis: type[Coordinators], pytestconfig: pytest.Config
) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        in_redis,
        settings=settings(
            max_examples=200 if AT_RANDOM else 12,
            stateful_step_count=40,
            suppress_health_check=list(HealthCheck),
        ),
    )

"""A connection that is cut during a response loses the response only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from flowengine.messaging import (
    FailureType,
    MessageCoordinatorError,
    RedisMessageCoordinator,
    SyncMessageCoordinator,
)
from tests.examples_drawn import AT_RANDOM
from tests.integration.messaging.samples import ASKER, WORKER, reserved, sample
from tests.proxy import Proxy
from tests.servers import RedisServer


@dataclass
class Fixture:
    """A coordinator whose connection can be cut, and one with a stable connection."""

    proxy: Proxy
    fragile: SyncMessageCoordinator
    steady: SyncMessageCoordinator
    client: redis.Redis
    token: str = ""

    def prepare(self) -> None:
        """One reserved message, one ready, one with an expired reservation, one dead letter."""
        self.client.flushall()
        self.steady.configure(queue_size=5, retry_attempts=1, backoff_base=0)
        self.steady.nack(WORKER, self._reserve("dead"), FailureType.PERMANENT)
        lost = self._reserve("lost")
        self.token = self._reserve("reserved")
        self.steady.send_message(ASKER, WORKER, sample("ready"))
        self.client.zadd("ao:reserved_deadlines:worker:1", {lost: 1})  # expired

    def _reserve(self, name: str) -> str:
        self.steady.send_message(ASKER, WORKER, sample(name))
        received = self.steady.receive(WORKER, visibility_timeout=60)
        assert received is not None
        return received.token

    def accounted_for(self) -> set[str]:
        """The ids of all messages; each is in exactly one place."""
        client, stored = self.client, set(self.client.hkeys("ao:messages:worker:1"))
        queue = client.lrange("ao:queue:worker:1", 0, -1)
        scheduled = [
            name
            for level in (9, 5, 1)
            for name in client.zrange(f"ao:sched:worker:1:prio:{level}", 0, -1)
        ]
        tokens = client.hkeys("ao:reserved:worker:1")
        assert sorted(queue) == sorted(stored) == sorted(scheduled + reserved(client))
        assert set(client.zrange("ao:reserved_deadlines:worker:1", 0, -1)) == set(tokens)
        dead = client.lrange("ao:dlq:worker:1", 0, -1)
        assert sorted(dead) == sorted(client.hkeys("ao:dead:worker:1"))
        assert not stored & set(dead)
        return stored | set(dead)


@pytest.fixture
def fixture(redis_server: RedisServer) -> Iterator[Fixture]:
    port = int(redis_server.url.rpartition(":")[2].partition("/")[0])
    with (
        Proxy(port) as proxy,
        redis.Redis(port=proxy.port, retry=Retry(NoBackoff(), 0)) as fragile,
        redis.Redis(port=port, decode_responses=True) as steady,
    ):
        yield Fixture(
            proxy, SyncMessageCoordinator(fragile), SyncMessageCoordinator(steady), steady
        )


Operation = Callable[[SyncMessageCoordinator, str], object]
ALL = {"message-dead", "message-lost", "message-reserved", "message-ready"}
OPERATIONS: dict[str, tuple[Operation, set[str]]] = {
    "send": (lambda box, _: box.send_message(ASKER, WORKER, sample("new")), ALL | {"message-new"}),
    "receive": (lambda box, _: box.receive(WORKER), ALL),
    "receive_batch": (lambda box, _: box.receive_batch(WORKER, 9), ALL),
    "ack": (lambda box, token: box.ack(WORKER, token), ALL - {"message-reserved"}),
    "nack": (lambda box, token: box.nack(WORKER, token, error="no"), ALL),
    "dead_letter": (lambda box, token: box.nack(WORKER, token, FailureType.PERMANENT), ALL),
    "extend": (lambda box, token: box.extend(WORKER, token, 60), ALL),
    "recover": (lambda box, _: box.recover_pending(), ALL),
    "requeue": (lambda box, _: box.requeue_dead_letters(WORKER), ALL),
    "purge": (lambda box, _: box.purge_dead_letters(WORKER), ALL - {"message-dead"}),
    "configure": (lambda box, _: box.configure(queue_size=7), ALL),
    "depths": (lambda box, _: box.depths(WORKER), ALL),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_that_is_cut_at_any_byte_of_its_response_loses_nothing(
    fixture: Fixture, name: str
) -> None:
    operation, expected = OPERATIONS[name]
    fixture.prepare()
    operation(fixture.steady, fixture.token)  # the script is loaded
    position, cuts = 0, 0
    stride = 7 if name == "receive_batch" else 1 if AT_RANDOM else 3  # a batch is long
    while True:
        fixture.prepare()
        fixture.fragile.configuration()  # connect before the cut
        fixture.proxy.cut_after(position)
        try:
            operation(fixture.fragile, fixture.token)
        except MessageCoordinatorError:
            assert fixture.proxy.has_cut
            cuts += 1
        fixture.proxy.left = None
        assert fixture.accounted_for() == expected
        # Repeating the operation is harmless.
        operation(fixture.steady, fixture.token)
        assert fixture.accounted_for() == expected
        if not fixture.proxy.has_cut:
            break
        position += stride
    assert cuts == position // stride > 0


def test_messages_of_a_lost_response_are_returned_when_the_client_repeats_the_command(
    fixture: Fixture,
) -> None:
    fixture.prepare()
    fixture.steady.recover_pending(WORKER)  # so that the first response has the messages
    with redis.Redis(
        port=fixture.proxy.port,
        retry=Retry(NoBackoff(), 2),
        retry_on_error=[redis.ConnectionError],  # redis-py 5 does not retry by default
    ) as stubborn:
        box = SyncMessageCoordinator(stubborn)
        box.receive(ASKER)  # the script is loaded
        fixture.proxy.cut_after(3)
        received = box.receive_batch(WORKER, 9)
        assert fixture.proxy.has_cut
    names = {one.message.payload["name"]: one for one in received}
    assert set(names) == {"lost", "ready"}
    assert names["ready"].queue_message.delivery_attempts == 0
    assert fixture.steady.ack_batch(WORKER, [one.token for one in received]) == [True, True]


def test_a_coroutine_whose_connection_is_cut_gets_an_error_and_can_repeat(fixture: Fixture) -> None:
    async def cut() -> None:
        client = redis.asyncio.Redis(
            port=fixture.proxy.port, retry=redis.asyncio.retry.Retry(NoBackoff(), 0)
        )
        async with client:
            box = RedisMessageCoordinator(client)
            await box.configuration()
            fixture.proxy.cut_after(2)
            with pytest.raises(MessageCoordinatorError, match="cannot send to worker/1"):
                await box.send_message(ASKER, WORKER, sample("new"))
            again = await box.send_message(ASKER, WORKER, sample("new"))
            assert (again.delivered, again.duplicate) == (True, True)

    fixture.prepare()
    asyncio.run(cut())
    assert fixture.accounted_for() == ALL | {"message-new"}

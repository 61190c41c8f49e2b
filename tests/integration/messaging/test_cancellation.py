"""A cancelled operation ends with `CancelledError`, and leaves no reservation behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import redis
from redis.asyncio import Connection, ConnectionPool, Redis

from flowengine.messaging import (
    CircuitBreaker,
    CircuitBreakerConfig,
    FailureType,
    MessagePriority,
    RedisMessageCoordinator,
)
from tests.integration.messaging.samples import ASKER, WORKER, reserved, sample
from tests.servers import RedisServer

#: Seconds after which an operation that was cancelled has not ended but hangs.
HANGS = 10.0


class Cancelling(Connection):
    """Cancels a task as soon as a command has been sent, inside redis-py's `wait_for`.

    On Python 3.11 `asyncio.wait_for` then returns normally and the cancellation is lost.
    """

    victim: asyncio.Task[Any] | None = None
    commands_left = 0

    async def _send_packed_command(self, command: Any) -> None:
        await super()._send_packed_command(command)
        cls = Cancelling
        if cls.victim is not None:
            if cls.commands_left == 0:
                cls.victim.cancel()
                cls.victim = None
            cls.commands_left -= 1


class Swallowing(Redis):
    """Swallows a cancellation that arrives after the response, on any version of Python."""

    cancel: Callable[[], object] | None = None
    commands_left = 0

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        response = await super().execute_command(*args, **options)
        if self.cancel is not None:
            if self.commands_left == 0:
                self.cancel()
                self.cancel = None
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.001)
            self.commands_left -= 1
        return response


@asynccontextmanager
async def swallowing(url: str) -> AsyncIterator[tuple[Swallowing, RedisMessageCoordinator]]:
    async with Swallowing.from_url(url) as client:
        yield client, RedisMessageCoordinator(client)


async def ended(task: asyncio.Task[Any]) -> None:
    """The task ends, and it ends cancelled."""
    done, _ = await asyncio.wait({task}, timeout=HANGS)
    assert done, "the cancellation was swallowed: the task goes on"
    assert task.cancelled(), task


Operation = Callable[[RedisMessageCoordinator], Coroutine[Any, Any, object]]
#: Each operation with the number of commands in which a cancellation may be swallowed.
OPERATIONS: dict[str, tuple[Operation, int]] = {
    "send": (lambda box: box.send_message(ASKER, WORKER, sample("new")), 1),
    "receive": (lambda box: box.receive(WORKER, 60), 1),
    "receive_batch": (lambda box: box.receive_batch(WORKER, 9, 60), 1),
    "wait": (lambda box: box.receive(ASKER, 60, timeout=3600), 3),
    "request": (lambda box: box.request(ASKER, WORKER, sample("new"), timeout=3600), 3),
    "depths": (lambda box: box.depths(WORKER), 1),
    "recover": (lambda box: box.recover_pending(), 2),
}


@pytest.mark.parametrize(
    ("name", "command"),
    [(name, command) for name, (_, most) in OPERATIONS.items() for command in range(most)],
)
def test_a_swallowed_cancellation_ends_the_operation(
    redis_server: RedisServer, client: redis.Redis, name: str, command: int
) -> None:
    async def scenario() -> None:
        async with swallowing(redis_server.url) as (swallower, box):
            for number in range(2):
                await box.send_message(ASKER, WORKER, sample(number))
            operation, _ = OPERATIONS[name]
            task = asyncio.create_task(operation(box))
            swallower.commands_left, swallower.cancel = command, task.cancel
            await ended(task)

    asyncio.run(scenario())
    assert reserved(client) == []


def test_a_cancellation_that_redis_py_swallows_while_sending_ends_the_receive(
    redis_server: RedisServer,
) -> None:
    async def scenario() -> None:
        pool = ConnectionPool.from_url(
            redis_server.url, connection_class=Cancelling, socket_timeout=5
        )
        async with Redis(connection_pool=pool) as client:
            box = RedisMessageCoordinator(client)
            await box.configuration()
            for command in range(3):  # receive, wait, receive
                task = asyncio.create_task(box.receive(WORKER, timeout=3600))
                Cancelling.commands_left, Cancelling.victim = command, task
                await ended(task)
        await pool.disconnect()

    asyncio.run(scenario())


@pytest.mark.parametrize("most", [1, 5])
def test_a_cancelled_receive_returns_its_messages_in_order_without_counting_an_attempt(
    redis_server: RedisServer, client: redis.Redis, most: int
) -> None:
    async def scenario() -> None:
        async with swallowing(redis_server.url) as (swallower, box):
            await box.send_message(ASKER, WORKER, sample(0, priority=MessagePriority.HIGH))
            for number in range(1, 5):
                await box.send_message(ASKER, WORKER, sample(number), expires_in=60)
            task = asyncio.create_task(box.receive_batch(WORKER, most, 60))
            swallower.cancel = task.cancel
            await ended(task)
            assert reserved(client) == []
            assert (await box.depths(WORKER)).reserved == 0
            again = await box.receive_batch(WORKER, 5, 60)
            assert [one.message.payload["name"] for one in again] == [0, 1, 2, 3, 4]
            assert {one.queue_message.delivery_attempts for one in again} == {0}

    asyncio.run(scenario())


@pytest.mark.parametrize("most", [1, 5])
def test_a_receive_that_arrives_after_its_cancellation_reserves_nothing(
    redis_server: RedisServer, client: redis.Redis, most: int
) -> None:
    class Late(Redis):
        """Runs the first command only when the second one, which undoes it, is done."""

        held: tuple[Any, ...] = ()
        hold = False

        async def execute_command(self, *args: Any, **options: Any) -> Any:
            if self.hold and not self.held:
                self.held = args
                await asyncio.sleep(3600)
            response = await super().execute_command(*args, **options)
            if self.hold:
                self.hold = False
                assert await super().execute_command(*self.held, **options) == -1
            return response

    async def scenario() -> None:
        async with Late.from_url(redis_server.url) as late:
            box = RedisMessageCoordinator(late)
            await box.receive_batch(WORKER, most)  # the script is loaded
            await box.send_message(ASKER, WORKER, sample(0))
            late.hold = True
            task = asyncio.create_task(box.receive_batch(WORKER, most, 60))
            while not late.held:
                await asyncio.sleep(0)
            task.cancel()
            await ended(task)
            assert not late.hold
            assert (await box.depths(WORKER)).reserved == 0
            # The entry that stopped it expires like a reservation, and is no message.
            (token,) = client.hkeys("ao:reserved:worker:1")
            client.zadd("ao:reserved_deadlines:worker:1", {token: 1})
            assert await box.recover_pending() == 0
            assert client.exists("ao:reserved:worker:1") == 0

    asyncio.run(scenario())


def test_a_cancelled_receive_ends_although_redis_does_not_respond(
    redis_server: RedisServer,
) -> None:
    class Silent(Redis):
        silent = False

        async def execute_command(self, *args: Any, **options: Any) -> Any:
            if self.silent:
                await asyncio.sleep(3600)
            return await super().execute_command(*args, **options)

    async def scenario() -> None:
        async with Silent.from_url(redis_server.url) as silent:
            box = RedisMessageCoordinator(silent)
            silent.silent = True
            task = asyncio.create_task(box.receive(WORKER))
            await asyncio.sleep(0)
            task.cancel()
            await ended(task)

    asyncio.run(scenario())


def test_a_cancelled_task_can_settle_its_message_while_it_cleans_up(
    redis_server: RedisServer,
) -> None:
    settled = []

    async def consumer(box: RedisMessageCoordinator, works: asyncio.Event) -> None:
        received = await box.receive(WORKER, 60)
        assert received is not None
        works.set()
        try:
            await asyncio.sleep(3600)
        finally:
            settled.append(await box.nack(WORKER, received.token, FailureType.PERMANENT))
            settled.append(await box.ack(WORKER, received.token))

    async def scenario() -> None:
        async with Redis.from_url(redis_server.url) as client:
            box = RedisMessageCoordinator(client)
            await box.send_message(ASKER, WORKER, sample(0))
            works = asyncio.Event()
            task = asyncio.create_task(consumer(box, works))
            await works.wait()
            task.cancel()
            await ended(task)

    asyncio.run(scenario())
    assert settled == [True, False]


def test_a_timeout_that_the_client_swallows_is_a_timeout(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        async with swallowing(redis_server.url) as (swallower, box), asyncio.timeout(None) as limit:
            await box.send_message(ASKER, WORKER, sample(0))
            swallower.cancel = lambda: limit.reschedule(0)
            await box.receive(WORKER)

    with pytest.raises(TimeoutError):
        asyncio.run(scenario())


def test_a_cancelled_permit_returns_its_probe(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        async with swallowing(redis_server.url) as (swallower, _):
            config = CircuitBreakerConfig(timeout_seconds=0.01, half_open_max_calls=1)
            breaker = CircuitBreaker(swallower, "shop", config)
            await breaker.trip()
            while (await breaker.snapshot()).retry_after:
                await asyncio.sleep(0)
            task = asyncio.create_task(breaker.permit())
            swallower.cancel = task.cancel
            await ended(task)
            assert (await breaker.snapshot()).probes == 0
            assert (await breaker.permit()).granted

    asyncio.run(scenario())


@pytest.mark.parametrize("turns", [150, pytest.param(1000, marks=pytest.mark.chaos)])
def test_no_random_cancellation_is_swallowed_or_leaks(
    redis_server: RedisServer, client: redis.Redis, turns: int
) -> None:
    """Consumers with up to four messages each, cancelled after 0 to 3 ms."""
    draw = random.Random(20_251)
    sent: set[str] = set()
    acknowledged: list[str] = []
    cancelled = 0

    async def consumer(box: RedisMessageCoordinator, held: dict[str, str]) -> None:
        while True:
            most = draw.choice([1, 1, 4])
            for one in await box.receive_batch(WORKER, most, 3600, timeout=3600):
                held[one.token] = one.message.message_id
            for token in list(held):
                if await box.ack(WORKER, token):
                    acknowledged.append(held.pop(token))

    async def turn(box: RedisMessageCoordinator, number: int) -> bool:
        held: dict[str, str] = {}
        task = asyncio.create_task(consumer(box, held))
        for place in range(draw.randrange(3)):
            message = sample(f"{number}-{place}")
            sent.add(message.message_id)
            await box.send_message(ASKER, WORKER, message)
        await asyncio.sleep(draw.random() * 0.003)
        task.cancel()
        await ended(task)
        # The consumer holds these: its acknowledgement was cancelled before or after it was made.
        for token, name in held.items():
            await box.ack(WORKER, token)
            acknowledged.append(name)
        return task.cancelled()

    async def scenario() -> None:
        nonlocal cancelled
        async with Redis.from_url(redis_server.url, socket_timeout=5) as connection:
            box = RedisMessageCoordinator(connection)
            for number in range(turns):
                cancelled += await turn(box, number)
            assert (await box.depths(WORKER)).reserved == 0
            while batch := await box.receive_batch(WORKER, 500, 3600):
                assert {one.queue_message.delivery_attempts for one in batch} == {0}
                assert all(await box.ack_batch(WORKER, [one.token for one in batch]))
                acknowledged.extend(one.message.message_id for one in batch)

    asyncio.run(scenario())
    assert cancelled == turns
    assert reserved(client) == []
    assert sorted(acknowledged) == sorted(sent)

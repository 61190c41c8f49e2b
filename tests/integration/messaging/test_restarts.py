"""Redis stops, and restarts with or without its data."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from flowengine.messaging import (
    Agent,
    AgentRegistryError,
    CircuitBreakerOpenError,
    FailureType,
    MessageCoordinatorError,
    MessageType,
    RedisAgentRegistry,
    RedisMessageCoordinator,
    SyncCircuitBreaker,
    SyncMessageCoordinator,
)
from tests.integration.messaging.samples import ASKER, WORKER, sample
from tests.servers import RedisServer


@pytest.fixture
def durable_redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer("--appendonly", "yes", "--appendfsync", "always", data=tmp_path)
    yield server
    server.stop()


@pytest.fixture
def no_retry(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url, retry=Retry(NoBackoff(), 0)) as client:
        yield client


def contents(client: redis.Redis) -> dict[str, Any]:
    readers = {
        "string": client.get,
        "hash": client.hgetall,
        "list": lambda key: client.lrange(key, 0, -1),
        "set": client.smembers,
        "zset": lambda key: client.zrange(key, 0, -1, withscores=True),
    }
    return {key: readers[client.type(key)](key) for key in sorted(client.keys())}


def test_a_durable_redis_continues_where_it_was_killed(
    durable_redis: RedisServer,
) -> None:
    with redis.Redis.from_url(durable_redis.url, decode_responses=True) as client:
        box = SyncMessageCoordinator(client)
        box.configure(retry_attempts=5, queue_size=50, fairness=3)
        box.subscribe_to_messages(WORKER, [MessageType.EVENT])
        box.send_batch(ASKER, WORKER, [sample(number) for number in range(5)])
        box.send_message(ASKER, WORKER, sample("later"), delay=60, expires_in=120)
        first, second, third = box.receive_batch(WORKER, 3, visibility_timeout=60)
        box.ack(WORKER, first.token)
        box.nack(WORKER, second.token, FailureType.PERMANENT, "no")
        breaker = SyncCircuitBreaker(client, "shop")
        breaker.trip()
        RedisAgentRegistry(client).register(Agent(agent_id=WORKER, name="Ada"))
        before = contents(client)
        assert len(before) > 12
        durable_redis.restart()
        assert contents(client) == before
        assert box.ack(WORKER, third.token) is True
        assert breaker.permit().granted is False
        assert [one.message.payload["name"] for one in box.receive_batch(WORKER, 9)] == [3, 4]


def test_every_operation_fails_at_once_without_redis(
    redis_server: RedisServer, no_retry: redis.Redis
) -> None:
    box, registry = SyncMessageCoordinator(no_retry), RedisAgentRegistry(no_retry)
    redis_server.stop()
    with pytest.raises(MessageCoordinatorError, match="cannot send to worker/1: ConnectionError"):
        box.send_message(ASKER, WORKER, sample(1))
    with pytest.raises(MessageCoordinatorError, match="cannot receive for worker/1"):
        box.receive(WORKER, timeout=60)
    with pytest.raises(MessageCoordinatorError, match="cannot acknowledge"):
        box.ack(WORKER, "res_1")
    (result,) = box.broadcast_message(ASKER, sample(1), [WORKER])
    assert (result.delivered, "ConnectionError" in (result.error or "")) == (False, True)
    with pytest.raises(AgentRegistryError, match="cannot register worker/1: ConnectionError"):
        registry.register(Agent(agent_id=WORKER, name="Ada"))


def test_a_redis_that_restarts_empty_is_used(
    redis_server: RedisServer, no_retry: redis.Redis
) -> None:
    box = SyncMessageCoordinator(no_retry)
    box.send_message(ASKER, WORKER, sample(1))
    received = box.receive(WORKER, visibility_timeout=60)
    assert received is not None
    redis_server.restart()
    no_retry.connection_pool.disconnect()
    assert box.ack(WORKER, received.token) is False
    assert box.send_message(ASKER, WORKER, sample(1)).duplicate is False
    again = box.receive(WORKER)
    assert again is not None
    assert box.ack(WORKER, again.token) is True


def test_a_waiting_receiver_gets_an_error_when_redis_stops_and_can_wait_again(
    redis_server: RedisServer,
) -> None:
    async def wait() -> None:
        retry = redis.asyncio.retry.Retry(NoBackoff(), 0)
        async with redis.asyncio.Redis.from_url(redis_server.url, retry=retry) as client:
            box = RedisMessageCoordinator(client)
            await box.configuration()
            waiting = asyncio.create_task(box.receive(WORKER, timeout=60))
            await _until_blocked(redis_server)
            await asyncio.to_thread(redis_server.stop)
            with pytest.raises(MessageCoordinatorError, match="cannot receive for worker/1"):
                await asyncio.wait_for(waiting, 30)
            await asyncio.to_thread(redis_server.start)
            await box.send_message(ASKER, WORKER, sample(1))
            assert await box.receive(WORKER, timeout=60) is not None

    asyncio.run(wait())


async def _until_blocked(server: RedisServer) -> None:
    async with redis.asyncio.Redis.from_url(server.url) as client:
        while (await client.info("clients"))["blocked_clients"] == 0:
            await asyncio.sleep(0.005)


def test_a_breaker_permits_all_calls_without_redis(
    redis_server: RedisServer, no_retry: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    breaker = SyncCircuitBreaker(no_retry, "shop")
    redis_server.stop()
    calls: list[int] = []
    for number in range(3):
        breaker.call(calls.append, number)
    assert calls == [0, 1, 2]
    assert [record.__dict__["action"] for record in caplog.records] == ["breaker_redis_unreachable"]


def test_a_breaker_refuses_all_calls_without_redis_if_configured(
    redis_server: RedisServer, no_retry: redis.Redis
) -> None:
    breaker = SyncCircuitBreaker(no_retry, "shop", without_redis="refuse")
    redis_server.stop()
    calls: list[int] = []
    with pytest.raises(CircuitBreakerOpenError, match="Redis is unreachable"):
        breaker.call(calls.append, 1)
    redis_server.start()
    breaker.call(calls.append, 2)
    assert calls == [2]


def test_heartbeats_continue_when_redis_is_back(
    redis_server: RedisServer, no_retry: redis.Redis
) -> None:
    with RedisAgentRegistry(no_retry, heartbeat_ttl_s=30, heartbeat_interval_s=0.02) as registry:
        registry.register(Agent(agent_id=WORKER, name="Ada"))
        registry.start_heartbeats()
        redis_server.restart()
        while not (agents := registry.list_agents()):
            time.sleep(0.005)
        assert agents[0]["alive"] is True

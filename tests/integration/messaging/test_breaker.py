"""Circuit breakers shared through Redis."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

from flowengine.messaging import (
    CircuitBreaker,
    CircuitBreakerConfig,
    CircuitBreakerOpenError,
    CircuitState,
    SyncCircuitBreaker,
)
from tests.integration.messaging.conftest import Synchronous
from tests.servers import RedisServer

CONFIG = CircuitBreakerConfig(failure_threshold=3, half_open_max_calls=2, success_threshold=2)
STATE = "ao:cb:state:shop"


class ServiceError(Exception):
    """Raised by the service."""


def works(value: int = 1) -> int:
    return value


def fails() -> None:
    raise ServiceError("no answer")


@pytest.fixture(params=["sync", "async"])
def make(request: pytest.FixtureRequest, redis_server: RedisServer) -> Iterator[Any]:
    """A factory of one kind of breaker; coroutines are run to their end."""
    if request.param == "sync":
        with redis.Redis.from_url(redis_server.url) as client:
            yield lambda **options: SyncCircuitBreaker(client, "shop", CONFIG, **options)
        return
    made: list[Synchronous] = []
    clients: list[redis.asyncio.Redis] = []

    def breaker(**options: Any) -> Any:
        clients.append(redis.asyncio.Redis.from_url(redis_server.url))
        made.append(Synchronous(lambda: CircuitBreaker(clients[-1], "shop", CONFIG, **options)))
        return made[-1]

    yield breaker
    for driven, client in zip(made, clients, strict=True):
        driven.run(client.aclose())
        driven.close()


def fail(breaker: Any, times: int) -> None:
    for _ in range(times):
        with pytest.raises(ServiceError):
            breaker.call(fails)


def elapse(client: redis.Redis, seconds: float) -> None:
    """Move the last transition `seconds` into the past."""
    client.hincrby(STATE, "changed", -round(seconds * 1_000_000))


def test_a_call_through_a_closed_breaker_returns_its_result(make: Any) -> None:
    assert make().call(works, value=5) == 5


def test_consecutive_failures_open_the_breaker_for_all(make: Any) -> None:
    one, other = make(), make()
    fail(one, 2)
    fail(other, 1)
    calls: list[int] = []
    with pytest.raises(CircuitBreakerOpenError) as refused:
        one.call(calls.append, 1)
    assert calls == []
    assert 59 < refused.value.retry_after <= 60
    assert refused.value.name == "shop"
    assert other.snapshot().state is CircuitState.OPEN


def test_a_success_resets_the_failure_count(make: Any) -> None:
    breaker = make()
    for _ in range(4):
        fail(breaker, 2)
        breaker.call(works)
    assert breaker.snapshot().state is CircuitState.CLOSED


def test_a_limited_number_of_probes_is_permitted_after_the_timeout(
    make: Any, client: redis.Redis
) -> None:
    breaker = make()
    breaker.trip()
    elapse(client, 60)
    permits = [breaker.permit() for _ in range(4)]
    assert [permit.granted for permit in permits] == [True, True, False, False]
    assert 0 < permits[2].retry_after <= 1
    with pytest.raises(CircuitBreakerOpenError, match="all probes are under way"):
        breaker.call(works)


def test_successful_probes_close_the_breaker(make: Any, client: redis.Redis) -> None:
    breaker = make()
    breaker.trip()
    elapse(client, 60)
    breaker.call(works)
    assert breaker.snapshot().state is CircuitState.HALF_OPEN
    breaker.call(works)
    assert breaker.snapshot().state is CircuitState.CLOSED
    assert [breaker.permit().granted for _ in range(5)] == [True] * 5


def test_a_failed_probe_opens_the_breaker_for_the_full_timeout(
    make: Any, client: redis.Redis
) -> None:
    breaker = make()
    breaker.trip()
    elapse(client, 60)
    breaker.call(works)
    fail(breaker, 1)
    snapshot = breaker.snapshot()
    assert snapshot.state is CircuitState.OPEN
    assert snapshot.retry_after > 59
    assert snapshot.successes == 0


def test_the_slot_of_a_dead_probe_is_free_when_its_lease_expires(
    make: Any, client: redis.Redis
) -> None:
    breaker = make()
    breaker.trip()
    elapse(client, 60)
    dead = [breaker.permit() for _ in range(2)]
    assert breaker.permit().granted is False
    client.zadd("ao:cb:probes:shop", {dead[0].token: 1})
    assert breaker.permit().granted is True
    # It was only slow. Its slot belongs to another probe, so its outcome is ignored.
    breaker.failure(dead[0])
    assert breaker.snapshot().state is CircuitState.HALF_OPEN
    assert breaker.snapshot().probes == 2


def test_a_released_probe_returns_its_slot_without_a_transition(
    make: Any, client: redis.Redis
) -> None:
    breaker = make()
    breaker.trip()
    elapse(client, 60)
    for _ in range(5):
        breaker.release(breaker.permit())
    snapshot = breaker.snapshot()
    assert (snapshot.state, snapshot.probes) == (CircuitState.HALF_OPEN, 0)


def test_probes_of_an_earlier_epoch_hold_their_slots_until_they_end(
    make: Any, client: redis.Redis
) -> None:
    breaker = make()
    breaker.trip()
    elapse(client, 60)
    slow, quick = breaker.permit(), breaker.permit()
    breaker.failure(quick)
    elapse(client, 60)
    assert [breaker.permit().granted for _ in range(2)] == [True, False]
    breaker.success(slow)  # of an earlier epoch: it returns its slot and is not counted
    assert breaker.snapshot().successes == 0
    assert breaker.permit().granted is True


def test_a_recovery_that_takes_too_long_opens_the_breaker(make: Any, client: redis.Redis) -> None:
    breaker = make()
    breaker.trip()
    elapse(client, 60)
    breaker.call(works)
    elapse(client, 310)
    refused = breaker.permit()
    assert (refused.granted, refused.state) == (False, CircuitState.OPEN)
    # It is open since the recovery timed out, not since this call.
    assert 45 < refused.retry_after < 51
    elapse(client, 60)
    assert breaker.permit().granted is True
    assert breaker.snapshot().successes == 0


def test_outcomes_of_an_earlier_epoch_are_ignored(make: Any) -> None:
    breaker = make()
    old = [breaker.permit() for _ in range(3)]
    breaker.trip()
    breaker.reset()
    for permit in old:
        breaker.failure(permit)
    assert breaker.snapshot().failures == 0


def test_only_configured_errors_count_as_failures(make: Any) -> None:
    breaker = make(failure_on=(OSError,), ignore=(FileNotFoundError,))

    def raises(error: Exception) -> None:
        raise error

    for error in (ServiceError(), FileNotFoundError(), ServiceError(), FileNotFoundError()):
        with pytest.raises(type(error)):
            breaker.call(raises, error)
    assert breaker.snapshot().failures == 0
    with pytest.raises(ConnectionError):
        breaker.call(raises, ConnectionError())
    assert breaker.snapshot().failures == 1


def test_a_permit_can_be_settled_by_another_process(make: Any) -> None:
    here, there = make(), make()
    for _ in range(3):
        there.failure(here.permit())
    refused = here.permit()
    assert refused.granted is False
    assert refused.retry_after > 59


def test_breakers_with_different_names_are_independent(make: Any, client: redis.Redis) -> None:
    make().trip()
    assert SyncCircuitBreaker(client, "shop:2").permit().granted is True


def test_coroutines_are_awaited(redis_server: RedisServer) -> None:
    async def respond(value: int) -> int:
        await asyncio.sleep(0)
        return value

    async def call() -> None:
        async with redis.asyncio.Redis.from_url(redis_server.url) as client:
            breaker = CircuitBreaker(client, "shop")
            assert await breaker.call(respond, 3) == 3
            assert await breaker.call(works, 4) == 4

    asyncio.run(call())


def test_a_cancelled_probe_returns_its_slot(redis_server: RedisServer) -> None:
    async def cancel() -> None:
        async with redis.asyncio.Redis.from_url(redis_server.url) as client:
            breaker = CircuitBreaker(client, "shop", CONFIG)
            await breaker.trip()
            await client.hset(STATE, "changed", 1)
            for _ in range(10):
                begun = asyncio.Event()

                async def probe(begun: asyncio.Event = begun) -> None:
                    begun.set()
                    await asyncio.sleep(3600)

                task = asyncio.create_task(breaker.call(probe))
                await begun.wait()
                assert (await breaker.snapshot()).probes == 1
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            snapshot = await breaker.snapshot()
            assert (snapshot.state, snapshot.probes) == (CircuitState.HALF_OPEN, 0)

    asyncio.run(cancel())


def test_a_call_that_is_cancelled_while_it_asks_for_a_permit_holds_no_slot(
    redis_server: RedisServer,
) -> None:
    async def cancel() -> None:
        async with redis.asyncio.Redis.from_url(redis_server.url) as client:
            breaker = CircuitBreaker(client, "shop", CONFIG)
            await breaker.trip()
            await client.hset(STATE, "changed", 1)
            for ticks in range(12):  # cancelled at ever later points of the round trip
                task = asyncio.create_task(breaker.call(asyncio.sleep, 0.01))
                for _ in range(ticks):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert (await breaker.snapshot()).probes == 0

    asyncio.run(cancel())


def test_an_inconsistent_configuration_is_refused() -> None:
    with pytest.raises(ValueError, match="raise recovery_timeout_seconds"):
        CircuitBreakerConfig(timeout_seconds=60, recovery_timeout_seconds=30)
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        CircuitBreakerConfig(half_open_max_calls=0)


def test_both_breakers_have_the_same_methods() -> None:
    def methods(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(member).parameters)
            for name, member in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    assert methods(CircuitBreaker) == methods(SyncCircuitBreaker)

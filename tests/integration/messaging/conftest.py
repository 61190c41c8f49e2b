"""Both coordinators, over a Redis of the test."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

from flowengine.messaging import RedisMessageCoordinator, SyncMessageCoordinator
from tests.servers import RedisServer


class Synchronous:
    """Wraps an asynchronous object: each coroutine is run to its end."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._runner = asyncio.Runner()
        self._object = self._runner.run(_call(make))

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._object, name)
        if not inspect.iscoroutinefunction(method):
            return method
        return lambda *args, **kwargs: self._runner.run(method(*args, **kwargs))

    def run(self, coroutine: Any) -> Any:
        return self._runner.run(coroutine)

    def close(self) -> None:
        self._runner.close()


async def _call(make: Callable[[], Any]) -> Any:
    return make()


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A client to inspect the stored data."""
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        yield client


@pytest.fixture(params=["sync", "async"])
def coordinator(request: pytest.FixtureRequest, redis_server: RedisServer) -> Iterator[Any]:
    """Each of the two coordinators; coroutines are run to their end."""
    if request.param == "sync":
        with redis.Redis.from_url(redis_server.url) as connection:
            yield SyncMessageCoordinator(connection)
        return
    clients = []

    def make() -> RedisMessageCoordinator:
        # With decoding: the coordinator must not depend on this option of the client.
        clients.append(redis.asyncio.Redis.from_url(redis_server.url, decode_responses=True))
        return RedisMessageCoordinator(clients[0])

    wrapped = Synchronous(make)
    yield wrapped
    wrapped.run(clients[0].aclose())
    wrapped.close()

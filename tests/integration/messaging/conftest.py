"""Both coordinators, over a private Redis."""

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


class InALoop:
    """An asynchronous object whose coroutines are run to their end at once."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._runner = asyncio.Runner()
        self._object = self._runner.run(_made(make))

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._object, name)
        if not inspect.iscoroutinefunction(method):
            return method
        return lambda *args, **kwargs: self._runner.run(method(*args, **kwargs))

    def run(self, coroutine: Any) -> Any:
        return self._runner.run(coroutine)

    def close(self) -> None:
        self._runner.close()


async def _made(make: Callable[[], Any]) -> Any:
    return make()


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """For looking at what is stored."""
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        yield client


@pytest.fixture(params=["sync", "async"])
def coordinator(request: pytest.FixtureRequest, redis_server: RedisServer) -> Iterator[Any]:
    """Each of the two coordinators; the asynchronous one is called as if it were not."""
    if request.param == "sync":
        with redis.Redis.from_url(redis_server.url) as connection:
            yield SyncMessageCoordinator(connection)
        return
    clients = []

    def make() -> RedisMessageCoordinator:
        # Decoding on purpose: what is stored must come through whatever the client does.
        clients.append(redis.asyncio.Redis.from_url(redis_server.url, decode_responses=True))
        return RedisMessageCoordinator(clients[0])

    driven = InALoop(make)
    yield driven
    driven.run(clients[0].aclose())
    driven.close()

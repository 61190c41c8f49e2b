"""Runs plans over an asynchronous client from code without a loop, or in another loop."""

from __future__ import annotations

import asyncio
import threading
from typing import TypeVar

from redis.asyncio import ConnectionPool, Redis

from flowengine.messaging.drivers import AsyncDriver, Plan

T = TypeVar("T")


class PrivateLoopDriver:
    """Runs plans in its own loop and thread.

    The connections of an asynchronous client belong to the loop that opened them, so this driver
    opens its own with the same options.
    """

    def __init__(self, redis: Redis) -> None:
        pool = redis.connection_pool
        self._redis = Redis(
            connection_pool=ConnectionPool(pool.connection_class, **pool.connection_kwargs)
        )
        self._driver = AsyncDriver(self._redis)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="flowengine-registry-loop", daemon=True
        )
        self._thread.start()

    def run(self, plan: Plan[T]) -> T:
        return asyncio.run_coroutine_threadsafe(self._driver.run(plan), self._loop).result()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        await self._redis.aclose()
        await self._redis.connection_pool.disconnect()

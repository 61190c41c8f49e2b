"""Four processes share one breaker: it opens once, limits probes, and closes once."""

from __future__ import annotations

import time
from collections.abc import Callable

import redis

from flowengine.messaging import CircuitState, SyncCircuitBreaker
from tests.acceptance.messaging import caller
from tests.acceptance.messaging.caller import CONFIG
from tests.acceptance.messaging.processes import kill, start
from tests.servers import RedisServer


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_four_processes_share_one_breaker(redis_server: RedisServer) -> None:
    client = redis.Redis.from_url(redis_server.url, decode_responses=True)
    breaker = SyncCircuitBreaker(client, "service", CONFIG)
    client.set("test:service", "up")
    callers = [start(caller.main, redis_server.url) for _ in range(4)]
    try:
        with client:
            until(lambda: int(client.get("test:calls") or 0) > 100)
            assert breaker.snapshot().epoch == 0

            client.set("test:service", "down")
            until(lambda: breaker.snapshot().state is CircuitState.OPEN)
            assert breaker.snapshot().epoch == 1  # opened once

            client.set("test:service", "hangs")
            until(lambda: client.scard("test:probes") == 2)
            first = {int(pid) for pid in client.smembers("test:probes")}
            for process in callers:
                if process.pid in first:
                    kill(process)
            client.srem("test:probes", *first)
            until(lambda: client.scard("test:probes") == 2)  # their leases expired
            assert not first & {int(pid) for pid in client.smembers("test:probes")}

            client.set("test:service", "up")
            until(lambda: breaker.snapshot().state is CircuitState.CLOSED)
            before = int(client.get("test:calls"))
            until(lambda: int(client.get("test:calls")) > before + 200)
            snapshot = breaker.snapshot()
            client.set("test:stop", 1)
            maximum = int(client.get("test:maximum"))
    finally:
        for process in callers:
            kill(process)
    assert snapshot.state is CircuitState.CLOSED
    assert snapshot.epoch == 3  # opened, half open, closed: once each
    assert maximum == 2

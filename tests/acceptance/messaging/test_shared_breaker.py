"""One breaker in four processes: it opens once for all, probes carefully, closes once for all."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import redis

from flowengine.messaging import CircuitState, SyncCircuitBreaker
from tests.acceptance.messaging.caller import CONFIG
from tests.servers import RedisServer

ROOT = Path(__file__).parent.parent.parent.parent


def until(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.002)


def test_four_processes_share_one_breaker(redis_server: RedisServer) -> None:
    client = redis.Redis.from_url(redis_server.url, decode_responses=True)
    breaker = SyncCircuitBreaker(client, "service", CONFIG)
    client.set("test:service", "up")
    command = [sys.executable, "-m", "tests.acceptance.messaging.caller", redis_server.url]
    callers = [subprocess.Popen(command, cwd=ROOT) for _ in range(4)]
    try:
        with client:
            until(lambda: int(client.get("test:calls") or 0) > 100)
            assert breaker.snapshot().epoch == 0

            client.set("test:service", "down")
            until(lambda: breaker.snapshot().state is CircuitState.OPEN)
            assert breaker.snapshot().epoch == 1  # opened once, by whoever it was

            client.set("test:service", "hangs")
            until(lambda: client.scard("test:probes") == 2)
            first = {int(pid) for pid in client.smembers("test:probes")}
            for caller in callers:
                if caller.pid in first:
                    caller.kill()
                    caller.wait()
            client.srem("test:probes", *first)
            until(lambda: client.scard("test:probes") == 2)  # their slots were freed
            assert not first & {int(pid) for pid in client.smembers("test:probes")}

            client.set("test:service", "up")
            until(lambda: breaker.snapshot().state is CircuitState.CLOSED)
            before = int(client.get("test:calls"))
            until(lambda: int(client.get("test:calls")) > before + 200)
            snapshot = breaker.snapshot()
            client.set("test:stop", 1)
            most = int(client.get("test:most"))
    finally:
        for caller in callers:
            caller.kill()
            caller.wait()
    assert snapshot.state is CircuitState.CLOSED
    assert snapshot.epoch == 3  # opened, half open, closed: once each
    assert most == 2

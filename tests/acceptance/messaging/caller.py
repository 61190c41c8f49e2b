"""A process that calls a service through a circuit breaker until it is told to stop.

The service is what `test:service` says: down, up, or one that hangs.
"""

from __future__ import annotations

import os
import time

import redis

from flowengine.messaging import CircuitBreakerConfig, CircuitState, SyncCircuitBreaker

CONFIG = CircuitBreakerConfig(
    failure_threshold=10,
    timeout_seconds=0.5,
    recovery_timeout_seconds=300,
    half_open_max_calls=2,
    success_threshold=2,
    probe_lease_seconds=1.5,
)
# The most probes ever under way, counted where nothing can come between.
PROBE = """
redis.call('SADD', 'test:probes', ARGV[1])
local most = tonumber(redis.call('GET', 'test:most') or 0)
redis.call('SET', 'test:most', math.max(most, redis.call('SCARD', 'test:probes')))
"""


def main(url: str) -> None:
    client = redis.Redis.from_url(url, decode_responses=True)
    breaker = SyncCircuitBreaker(client, "service", CONFIG)
    process = os.getpid()
    while not client.exists("test:stop"):
        permit = breaker.permit()
        if not permit.granted:
            time.sleep(min(permit.retry_after, 0.02))
            continue
        probing = permit.state is CircuitState.HALF_OPEN
        if probing:
            client.eval(PROBE, 0, process)
        while (service := client.get("test:service")) == "hangs":
            time.sleep(0.005)
        if probing:
            client.srem("test:probes", process)
        client.incr("test:calls")
        if service == "up":
            breaker.success(permit)
        else:
            breaker.failure(permit)

"""A process that calls a service through a circuit breaker until `test:stop` exists.

The key `test:service` has the state of the service: down, up, or hangs.
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
# Atomically records the maximum of concurrent probes.
PROBE = """
redis.call('SADD', 'test:probes', ARGV[1])
local maximum = tonumber(redis.call('GET', 'test:maximum') or 0)
redis.call('SET', 'test:maximum', math.max(maximum, redis.call('SCARD', 'test:probes')))
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
        # Only a probe hangs: a permit from before the breaker opened must not keep this process.
        while (service := client.get("test:service")) == "hangs" and probing:
            time.sleep(0.005)
        if probing:
            client.srem("test:probes", process)
        client.incr("test:calls")
        if service == "up":
            breaker.success(permit)
        else:
            breaker.failure(permit)

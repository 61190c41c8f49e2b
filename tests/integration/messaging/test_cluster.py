"""Messaging in a Redis Cluster, with a hash tag as key prefix."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator

import pytest
import redis
import redis.asyncio

from flowengine.messaging import (
    Agent,
    MessageCoordinatorError,
    RedisAgentRegistry,
    RedisMessageCoordinator,
    SyncCircuitBreaker,
    SyncMessageCoordinator,
)
from tests.integration.messaging.samples import ASKER, WORKER, sample
from tests.servers import RedisServer, ServerDidNotStart


@pytest.fixture(scope="module")
def cluster() -> Iterator[int]:
    """The port of a cluster of one node; slots are separate as in a larger one."""
    server = _cluster_node()
    port = int(server.url.rpartition(":")[2].partition("/")[0])
    with redis.Redis(port=port) as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        while client.cluster("info")["cluster_state"] != "ok":
            time.sleep(0.01)
    yield port
    server.stop()


def _cluster_node() -> RedisServer:
    # The cluster bus port is derived from the first port, and may be in use.
    for _ in range(5):
        with contextlib.suppress(ServerDidNotStart):
            return RedisServer("--cluster-enabled", "yes")
    return RedisServer("--cluster-enabled", "yes")


def test_everything_works_in_a_cluster_under_a_hash_tag(cluster: int) -> None:
    with redis.RedisCluster(host="127.0.0.1", port=cluster) as client:
        box = SyncMessageCoordinator(client, key_prefix="{ao}")
        box.send_message(ASKER, WORKER, sample(1))
        received = box.receive(WORKER, timeout=5)
        assert received is not None
        assert box.ack(WORKER, received.token) is True
        assert box.receive(WORKER, timeout=0.05) is None
        assert box.recover_pending() == 0
        SyncCircuitBreaker(client, "shop", key_prefix="{ao}").call(str)
        with RedisAgentRegistry(client, key_prefix="{ao}", enable_events=True) as registry:
            registry.register(Agent(agent_id=WORKER, name="Ada", capabilities={"add"}))
            registry.beat()
            assert registry.find_agents("add") == [WORKER]
            registry.deregister(WORKER)


def test_coroutines_work_in_a_cluster(cluster: int) -> None:
    async def scenario() -> None:
        async with redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster) as client:
            box = RedisMessageCoordinator(client, key_prefix="{async}")
            await box.send_message(ASKER, WORKER, sample(1))
            received = await box.receive(WORKER, timeout=5)
            assert received is not None
            assert await box.ack(WORKER, received.token) is True

    asyncio.run(scenario())


def test_a_cluster_refuses_a_prefix_without_hash_tag(cluster: int) -> None:
    with redis.RedisCluster(host="127.0.0.1", port=cluster) as client:
        box = SyncMessageCoordinator(client, key_prefix="ao")
        with pytest.raises(MessageCoordinatorError, match="slot"):
            box.send_message(ASKER, WORKER, sample(1))

"""In a cluster, with a prefix that is a hash tag."""

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
from tests.integration.messaging.mail import ASKER, WORKER, mail
from tests.servers import RedisServer, ServerDidNotStart


@pytest.fixture(scope="module")
def cluster() -> Iterator[int]:
    """The port of a cluster of one node: slots are kept apart as in a larger one."""
    server = _cluster_node()
    port = int(server.url.rpartition(":")[2].partition("/")[0])
    with redis.Redis(port=port) as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        while client.cluster("info")["cluster_state"] != "ok":
            time.sleep(0.01)
    yield port
    server.stop()


def _cluster_node() -> RedisServer:
    # Its second port follows from its first one, and may be taken.
    for _ in range(5):
        with contextlib.suppress(ServerDidNotStart):
            return RedisServer("--cluster-enabled", "yes")
    return RedisServer("--cluster-enabled", "yes")


def test_everything_works_in_a_cluster_under_a_hash_tag(cluster: int) -> None:
    with redis.RedisCluster(host="127.0.0.1", port=cluster) as client:
        box = SyncMessageCoordinator(client, key_prefix="{ao}")
        box.send_message(ASKER, WORKER, mail(1))
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


def test_coroutines_work_in_a_cluster_too(cluster: int) -> None:
    async def talk() -> None:
        async with redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster) as client:
            box = RedisMessageCoordinator(client, key_prefix="{async}")
            await box.send_message(ASKER, WORKER, mail(1))
            received = await box.receive(WORKER, timeout=5)
            assert received is not None
            assert await box.ack(WORKER, received.token) is True

    asyncio.run(talk())


def test_a_prefix_that_is_no_hash_tag_is_refused_by_the_cluster(cluster: int) -> None:
    with redis.RedisCluster(host="127.0.0.1", port=cluster) as client:
        box = SyncMessageCoordinator(client, key_prefix="ao")
        with pytest.raises(MessageCoordinatorError, match="slot"):
            box.send_message(ASKER, WORKER, mail(1))

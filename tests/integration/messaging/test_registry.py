"""Registration, heartbeats and events of agents."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest
import redis
import redis.asyncio

from flowengine.messaging import Agent, AgentEvent, AgentId, AgentRegistryError, RedisAgentRegistry
from flowengine.messaging.drivers import Plan
from tests.integration.messaging.samples import WORKER
from tests.servers import RedisServer

ADA = Agent(agent_id=WORKER, name="Ada", capabilities={"add", "divide"}, status={"load": 1})


def eventually(holds: Callable[[], bool]) -> None:
    """Wait for something that depends on the clock of the Redis server."""
    while not holds():
        time.sleep(0.005)


class Listener:
    """The events published since its creation."""

    def __init__(self, client: redis.Redis, channel: str) -> None:
        self._pubsub = client.pubsub(ignore_subscribe_messages=True)
        self._pubsub.subscribe(channel)
        self._pubsub.get_message(timeout=5)

    def all(self) -> list[tuple[str, str]]:
        events = []
        while (message := self._pubsub.get_message(timeout=0.05)) is not None:
            event = AgentEvent.model_validate_json(message["data"])
            events.append((event.event, event.name))
        return events

    def close(self) -> None:
        self._pubsub.close()


@pytest.fixture
def listener(client: redis.Redis) -> Iterator[Listener]:
    subscribed = Listener(client, "ao:events:agent_status")
    yield subscribed
    subscribed.close()


def test_a_registered_agent_is_listed_with_its_data(client: redis.Redis) -> None:
    registry = RedisAgentRegistry(client)
    registry.register(ADA)
    (listed,) = registry.list_agents()
    assert listed["name"] == "Ada"
    assert listed["agent_id"] == {"type": "worker", "instance": "1"}
    assert (listed["status"], listed["capabilities"]) == ({"load": 1}, ["add", "divide"])
    assert listed["alive"] is True
    assert abs(listed["last_heartbeat"] - client.time()[0]) < 5
    assert client.smembers("ao:agents:index") == {"ao:agents:worker:1"}
    assert client.smembers("ao:capabilities:index") == {"ao:capabilities:worker:1"}


def test_a_heartbeat_writes_changed_data(client: redis.Redis) -> None:
    registry = RedisAgentRegistry(client)
    agent = ADA.model_copy(deep=True)
    registry.register(agent)
    agent.status["load"] = 7
    registry.beat()
    assert registry.list_agents()[0]["status"] == {"load": 7}


def test_living_agents_are_found_by_capability(client: redis.Redis) -> None:
    registry = RedisAgentRegistry(client)
    registry.register(ADA)
    short = RedisAgentRegistry(client, heartbeat_ttl_s=0.03)
    short.register(Agent(agent_id=AgentId(type="short"), name="Bob", capabilities={"add"}))
    eventually(lambda: registry.find_agents("add") == [WORKER])
    assert registry.find_agents("divide") == [WORKER]
    assert registry.find_agents("fly") == []


def test_a_deregistered_agent_leaves_no_keys(client: redis.Redis) -> None:
    registry = RedisAgentRegistry(client)
    registry.register(ADA)
    registry.deregister(WORKER)
    registry.beat()
    assert client.keys() == []


def test_a_lost_agent_is_listed_until_its_record_expires(client: redis.Redis) -> None:
    registry = RedisAgentRegistry(client, heartbeat_ttl_s=0.05, keep_lost_s=60)
    registry.register(ADA)
    eventually(lambda: not registry.list_agents()[0]["alive"])
    assert client.pttl("ao:agents:worker:1") > 50_000


def test_an_expired_record_is_removed_from_the_indexes(client: redis.Redis) -> None:
    registry = RedisAgentRegistry(client, heartbeat_ttl_s=0.03, keep_lost_s=0.01)
    registry.register(ADA)
    eventually(lambda: not client.exists("ao:agents:worker:1"))
    assert registry.list_agents() == []
    assert client.keys("*index*") == client.keys("*names*") == []


def test_every_event_of_an_agent_is_published_once(client: redis.Redis, listener: Listener) -> None:
    options: dict[str, Any] = {"heartbeat_ttl_s": 0.05, "keep_lost_s": 60, "enable_events": True}
    registry, watcher, other = (RedisAgentRegistry(client, **options) for _ in range(3))
    registry.register(ADA)
    registry.beat()
    eventually(lambda: not registry.list_agents()[0]["alive"])
    watcher.beat()
    other.beat()
    watcher.beat()
    registry.beat()
    registry.deregister(WORKER)
    events = ["registered", "lost", "recovered", "deregistered"]
    assert listener.all() == [(event, "Ada") for event in events]


def test_nothing_is_published_unless_events_are_enabled(
    client: redis.Redis, listener: Listener
) -> None:
    registry = RedisAgentRegistry(client)
    registry.register(ADA)
    registry.beat()
    registry.deregister(WORKER)
    assert listener.all() == []


def test_a_second_registration_displaces_the_first_and_both_processes_log_it(
    client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = RedisAgentRegistry(client), RedisAgentRegistry(client)
    first.register(ADA)
    second.register(ADA.model_copy(update={"name": "Bob"}))
    first.beat()
    assert first.displaced() == {WORKER}
    assert second.displaced() == set()
    actions = [record.__dict__["action"] for record in caplog.records]
    assert actions == ["agent_replaced", "agent_displaced"]
    first.beat()
    second.beat()
    assert [agent["name"] for agent in second.list_agents()] == ["Bob"]


def test_a_displaced_process_cannot_deregister_its_successor(client: redis.Redis) -> None:
    first, second = RedisAgentRegistry(client), RedisAgentRegistry(client)
    first.register(ADA)
    second.register(ADA)
    first.deregister(WORKER)
    assert len(second.list_agents()) == 1


def test_an_exclusive_registration_is_refused_while_another_is_alive(client: redis.Redis) -> None:
    first = RedisAgentRegistry(client, heartbeat_ttl_s=0.05, keep_lost_s=60)
    second = RedisAgentRegistry(client)
    first.register(ADA)
    with pytest.raises(AgentRegistryError, match=r"process \d+ has registered it and is alive"):
        second.register(ADA, exclusive=True)
    eventually(lambda: not first.list_agents()[0]["alive"])
    second.register(ADA, exclusive=True)


def test_another_process_can_deregister_an_agent(client: redis.Redis) -> None:
    RedisAgentRegistry(client).register(ADA)
    operator = RedisAgentRegistry(client)
    operator.deregister(WORKER)
    assert operator.list_agents() == []


def test_heartbeats_keep_an_agent_alive_without_a_running_loop(redis_server: RedisServer) -> None:
    client = redis.asyncio.Redis.from_url(redis_server.url)
    with RedisAgentRegistry(client, heartbeat_ttl_s=30, heartbeat_interval_s=0.01) as registry:
        registry.register(ADA)
        first = registry.list_agents()[0]["last_heartbeat"]
        registry.start_heartbeats()
        registry.start_heartbeats()
        eventually(lambda: registry.list_agents()[0]["last_heartbeat"] > first)
        registry.stop_heartbeats()
        last = registry.list_agents()[0]["last_heartbeat"]
        assert registry.list_agents()[0]["last_heartbeat"] == last
        registry.start_heartbeats()
        eventually(lambda: registry.list_agents()[0]["last_heartbeat"] > last)
        registry.deregister(WORKER)


def test_heartbeats_continue_while_the_loop_is_blocked(redis_server: RedisServer) -> None:
    async def live() -> None:
        async with redis.asyncio.Redis.from_url(redis_server.url) as client:
            await client.ping()  # connections that belong to this loop
            registry = RedisAgentRegistry(client, heartbeat_ttl_s=30, heartbeat_interval_s=0.01)
            with registry:
                registry.register(ADA)
                registry.start_heartbeats()
                (before,) = await registry.list_registered()
                with redis.Redis.from_url(redis_server.url) as other:
                    reader = RedisAgentRegistry(other)
                    # No await from here on: the loop is blocked.
                    eventually(
                        lambda: reader.list_agents()[0]["last_heartbeat"] > before["last_heartbeat"]
                    )
                assert await registry.find_by_capability("add") == [WORKER]
                registry.deregister(WORKER)
                assert await registry.list_registered() == []

    asyncio.run(live())


def test_a_heartbeat_under_way_does_not_register_a_deregistered_agent_again(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = RedisAgentRegistry(client)
    registry.register(ADA)
    under_way, go_on = threading.Event(), threading.Event()
    heartbeat = registry._plans.heartbeat

    def slow_heartbeat(mode: str, agent: Agent, incarnation: str) -> Plan[tuple[int, str]]:
        under_way.set()
        go_on.wait()
        return (yield from heartbeat(mode, agent, incarnation))

    monkeypatch.setattr(registry._plans, "heartbeat", slow_heartbeat)
    with ThreadPoolExecutor() as threads:
        beat = threads.submit(registry.beat)
        under_way.wait()
        deregistration = threads.submit(registry.deregister, WORKER)
        wait([deregistration], timeout=0.2)  # it has to wait for the heartbeat
        go_on.set()
        beat.result()
        deregistration.result()
    assert registry.list_agents() == []


def test_an_interval_that_is_not_shorter_than_the_ttl_is_refused(client: redis.Redis) -> None:
    with pytest.raises(ValueError, match="is not shorter than heartbeat_ttl_s"):
        RedisAgentRegistry(client, heartbeat_ttl_s=10, heartbeat_interval_s=10)

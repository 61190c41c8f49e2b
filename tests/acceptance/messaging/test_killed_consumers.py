"""Consumers are killed at random: each message is acknowledged once or becomes a dead letter."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess

import pytest
import redis

from flowengine.messaging import AgentId, AgentMessage, MessageType, SyncMessageCoordinator
from tests.acceptance.messaging import consumer
from tests.acceptance.messaging.consumer import WORKER
from tests.acceptance.messaging.processes import kill, start
from tests.servers import RedisServer

CONSUMERS = 8


@contextmanager
def consumers(url: str, count: int) -> Iterator[list[ForkServerProcess]]:
    running = [start(consumer.main, url) for _ in range(count)]
    try:
        yield running
    finally:
        for process in running:
            kill(process)


def messages(count: int, fatal: frozenset[int]) -> list[AgentMessage]:
    producer = AgentId(type="producer")
    return [
        AgentMessage(
            message_id=f"message-{number}",
            sender=producer,
            recipient=WORKER,
            message_type=MessageType.EVENT,
            payload={"fatal": number in fatal},
        )
        for number in range(count)
    ]


@pytest.mark.parametrize(
    "count", [pytest.param(1_500), pytest.param(20_000, marks=pytest.mark.chaos)]
)
def test_each_message_is_acknowledged_once_or_dead_although_consumers_are_killed(
    redis_server: RedisServer, chaos_seed: int, count: int
) -> None:
    rng = random.Random(chaos_seed)
    url = redis_server.url
    client = redis.Redis.from_url(url, decode_responses=True)
    box = SyncMessageCoordinator(client)
    # The deduplication window covers the test: it shows all acknowledged ids at the end.
    box.configure(queue_size=count, dedup_window=3600, retry_attempts=2)
    # One message kills its consumers: it becomes a dead letter after three deliveries.
    sent = messages(count, fatal=frozenset({count // 2}))
    killed: set[int | None] = set()
    deadline = time.monotonic() + count / 10
    with client, consumers(url, CONSUMERS) as running:
        for first in range(0, count, 500):
            box.send_batch(WORKER, WORKER, sent[first : first + 500])
        for mark in sorted(rng.sample(range(count // 10, count * 8 // 10), 3)):
            while client.llen("test:delivered") < mark:
                assert time.monotonic() < deadline
                time.sleep(0.001)
            victim = rng.choice(running)
            kill(victim)
            killed.add(victim.pid)
            running[running.index(victim)] = start(consumer.main, url)
        while box.depths(WORKER).total > 0:
            assert time.monotonic() < deadline
            for place, process in enumerate(running):
                if not process.is_alive():
                    killed.add(process.pid)
                    running[place] = start(consumer.main, url)
            time.sleep(0.02)
        client.set("test:stop", 1)
        for process in running:
            process.join(30)
            if process.exitcode != 0:
                killed.add(process.pid)

        assert client.keys("ao:messages*") == client.keys("ao:reserved*") == []
        acknowledged = set(client.zrange("ao:seen:worker:default", 0, -1))
        dead = {letter.message_id: letter for letter in box.dead_letters(WORKER)}
        delivered, acked, late = (
            [tuple(line.split()) for line in client.lrange(f"test:{kind}", 0, -1)]
            for kind in ("delivered", "acked", "late")
        )
    names = {message.message_id for message in sent}
    again = [line for line in delivered if line[1] != "0"]
    print(
        f"\n{count} sent, {len(acknowledged)} acknowledged, {len(dead)} dead, "
        f"{len(delivered)} deliveries, {len(again)} of them redeliveries, "
        f"{len(late)} late acknowledgements, {len(killed)} consumers died"
    )
    assert acknowledged | set(dead) == names
    assert not acknowledged & set(dead)
    assert set(dead) >= {f"message-{count // 2}"}
    assert all(letter.attempts == 3 for letter in dead.values())
    assert max(Counter(name for name, _, _ in acked).values()) == 1
    assert_only_lost_messages_were_redelivered(delivered, late, killed)


def assert_only_lost_messages_were_redelivered(
    delivered: list[tuple[str, ...]], late: list[tuple[str, ...]], killed: set[int | None]
) -> None:
    tries: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for name, number, process in delivered:
        tries[name].append((int(number), int(process)))
    too_late = {(name, int(number)) for name, number, _ in late}
    for name, deliveries in tries.items():
        deliveries.sort()
        assert len({number for number, _ in deliveries}) == len(deliveries)
        for number, process in deliveries[:-1]:
            assert process in killed or (name, number) in too_late

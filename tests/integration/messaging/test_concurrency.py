"""Concurrent clients: limits are exact, and no message is delivered twice."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import redis

from flowengine.messaging import SyncMessageCoordinator
from tests.integration.messaging.samples import ASKER, WORKER, sample
from tests.servers import RedisServer


def concurrently(
    server: RedisServer, count: int, act: Callable[[SyncMessageCoordinator, int], list[str]]
) -> list[str]:
    """The results of `count` threads that start together, each with its own connection."""
    barrier = threading.Barrier(count)

    def one(number: int) -> list[str]:
        with redis.Redis.from_url(server.url) as client:
            box = SyncMessageCoordinator(client)
            box.configuration()
            barrier.wait()
            return act(box, number)

    with ThreadPoolExecutor(count) as pool:
        return [result for results in pool.map(one, range(count)) for result in results]


def test_concurrent_senders_fill_a_queue_exactly(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    def send(box: SyncMessageCoordinator, sender: int) -> list[str]:
        results = [
            box.send_message(ASKER, WORKER, sample(f"{sender}-{number}")) for number in range(10)
        ]
        return [result.message_id for result in results if result.delivered]

    box = SyncMessageCoordinator(client)
    box.configure(queue_size=37)
    accepted = concurrently(redis_server, 16, send)
    assert len(accepted) == box.depths(WORKER).total == 37
    received = box.receive_batch(WORKER, 100)
    assert {one.message.message_id for one in received} == set(accepted)


def test_concurrent_receivers_get_each_message_once(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    def receive(box: SyncMessageCoordinator, number: int) -> list[str]:
        ids = []
        while (received := box.receive(WORKER, visibility_timeout=60)) is not None:
            ids.append(received.message.message_id)
            assert box.ack(WORKER, received.token) is True
        return ids

    sent = [sample(number) for number in range(400)]
    SyncMessageCoordinator(client).send_batch(ASKER, WORKER, sent)
    received = Counter(concurrently(redis_server, 8, receive))
    assert received == Counter(message.message_id for message in sent)


def test_a_message_that_many_send_concurrently_is_enqueued_once(redis_server: RedisServer) -> None:
    def send(box: SyncMessageCoordinator, number: int) -> list[str]:
        return [] if box.send_message(ASKER, WORKER, sample(1)).duplicate else ["first"]

    assert concurrently(redis_server, 16, send) == ["first"]


def test_an_expiring_reservation_is_either_recovered_or_acknowledged(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    box = SyncMessageCoordinator(client)
    box.configure(retry_attempts=1000, dedup_window=0)
    for round_ in range(60):
        box.send_message(ASKER, WORKER, sample(round_))
        # It expires at about the time at which the two threads below start.
        received = box.receive(WORKER, visibility_timeout=0.004)
        assert received is not None
        token = received.token

        def either(box: SyncMessageCoordinator, number: int, token: str = token) -> list[str]:
            if number == 0:
                return ["acked"] if box.ack(WORKER, token) else []
            return ["recovered"] * box.recover_pending(WORKER)

        happened = concurrently(redis_server, 2, either)
        left = box.depths(WORKER).total
        assert (happened.count("acked"), left) in [(1, 0), (0, 1)]
        if left:
            again = box.receive(WORKER, timeout=5)
            assert again is not None
            assert box.ack(WORKER, again.token) is True

"""Many at once: what is counted is exact, and nothing is handed out twice."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import redis

from flowengine.messaging import SyncMessageCoordinator
from tests.integration.messaging.mail import ASKER, WORKER, mail
from tests.servers import RedisServer


def at_once(
    server: RedisServer, count: int, act: Callable[[SyncMessageCoordinator, int], list[str]]
) -> list[str]:
    """What so many threads did, each with a connection of its own, begun together."""
    gate = threading.Barrier(count)

    def one(number: int) -> list[str]:
        with redis.Redis.from_url(server.url) as client:
            box = SyncMessageCoordinator(client)
            box.configuration()
            gate.wait()
            return act(box, number)

    with ThreadPoolExecutor(count) as pool:
        return [what for done in pool.map(one, range(count)) for what in done]


def test_a_queue_takes_exactly_as_many_as_fit_from_senders_at_once(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    def send(box: SyncMessageCoordinator, sender: int) -> list[str]:
        results = [
            box.send_message(ASKER, WORKER, mail(f"{sender}-{number}")) for number in range(10)
        ]
        return [result.message_id for result in results if result.delivered]

    box = SyncMessageCoordinator(client)
    box.configure(queue_size=37)
    accepted = at_once(redis_server, 16, send)
    assert len(accepted) == box.depths(WORKER).total == 37
    received = box.receive_batch(WORKER, 100)
    assert {one.message.message_id for one in received} == set(accepted)


def test_messages_are_handed_out_once_to_receivers_at_once(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    def receive(box: SyncMessageCoordinator, number: int) -> list[str]:
        found = []
        while (received := box.receive(WORKER, visibility_timeout=60)) is not None:
            found.append(received.message.message_id)
            assert box.ack(WORKER, received.token) is True
        return found

    sent = [mail(number) for number in range(400)]
    SyncMessageCoordinator(client).send_batch(ASKER, WORKER, sent)
    received = Counter(at_once(redis_server, 8, receive))
    assert received == Counter(message.message_id for message in sent)


def test_one_message_sent_by_many_at_once_is_one_message(redis_server: RedisServer) -> None:
    def send(box: SyncMessageCoordinator, number: int) -> list[str]:
        return [] if box.send_message(ASKER, WORKER, mail(1)).duplicate else ["first"]

    assert at_once(redis_server, 16, send) == ["first"]


def test_an_expired_reservation_is_recovered_or_acknowledged_and_never_both(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    box = SyncMessageCoordinator(client)
    box.configure(retry_attempts=1000, dedup_window=0)
    for round_ in range(60):
        box.send_message(ASKER, WORKER, mail(round_))
        # About as long as it takes until the two below are at it.
        received = box.receive(WORKER, visibility_timeout=0.004)
        assert received is not None
        token = received.token

        def either(box: SyncMessageCoordinator, number: int, token: str = token) -> list[str]:
            if number == 0:
                return ["acked"] if box.ack(WORKER, token) else []
            return ["recovered"] * box.recover_pending(WORKER)

        happened = at_once(redis_server, 2, either)
        left = box.depths(WORKER).total
        assert (happened.count("acked"), left) in [(1, 0), (0, 1)]
        if left:
            again = box.receive(WORKER, timeout=5)
            assert again is not None
            assert box.ack(WORKER, again.token) is True

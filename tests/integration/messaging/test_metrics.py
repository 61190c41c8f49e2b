"""What is counted, and that counting disturbs nothing."""

from __future__ import annotations

import asyncio
import logging

import pytest
import redis
import redis.asyncio
from prometheus_client import CollectorRegistry
from redis.backoff import NoBackoff
from redis.retry import Retry

from flowengine.messaging import (
    AgentId,
    FailureType,
    MessageCoordinatorError,
    MessageResult,
    MessageType,
    RedisMessageCoordinator,
    SyncMessageCoordinator,
)
from flowengine.messaging.prometheus import PrometheusMetrics
from tests.integration.messaging.mail import ASKER, WORKER, mail
from tests.servers import RedisServer


class Counted:
    """A sink that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, float]] = []

    def inc_delivered_ok(self, count: int) -> None:
        self.told.append(("ok", count))

    def inc_delivered_error(self, count: int) -> None:
        self.told.append(("error", count))

    def inc_retries_scheduled(self, count: int, last_backoff_seconds: float) -> None:
        self.told.append(("retry", last_backoff_seconds))

    def inc_nacks(self, count: int) -> None:
        self.told.append(("nack", count))

    def inc_permanent(self, count: int) -> None:
        self.told.append(("permanent", count))


class Broken(Counted):
    """A sink that fails whatever it is told."""

    def __getattribute__(self, name: str) -> object:
        if name.startswith("inc_"):
            raise OSError("the disk is full")
        return super().__getattribute__(name)


def live(box: SyncMessageCoordinator) -> None:
    """Send, refuse, retry, bury."""
    box.configure(queue_size=2, retry_attempts=1, backoff_base=0)
    box.send_batch(ASKER, WORKER, [mail(1), mail(2), mail(3)])
    for _ in range(2):
        received = box.receive(WORKER)
        assert received is not None
        box.nack(WORKER, received.token, FailureType.TRANSIENT)
    first, second = box.receive_batch(WORKER, 2)
    box.nack(WORKER, first.token, FailureType.PERMANENT)
    box.ack(WORKER, second.token)


def test_every_refusal_retry_and_death_is_counted(client: redis.Redis) -> None:
    counted = Counted()
    live(SyncMessageCoordinator(client, metrics=counted))
    assert counted.told == [
        *(("ok", 2), ("error", 1)),
        *(("nack", 1), ("retry", 0.0)) * 2,
        *(("nack", 1), ("permanent", 1)),
    ]


def test_a_message_that_kills_its_receivers_is_counted_as_dead(client: redis.Redis) -> None:
    counted = Counted()
    box = SyncMessageCoordinator(client, metrics=counted)
    box.configure(retry_attempts=0)
    box.send_message(ASKER, WORKER, mail(1))
    box.receive(WORKER, visibility_timeout=0)
    box.receive(WORKER)
    assert counted.told == [("ok", 1), ("permanent", 1)]


def test_what_could_not_be_sent_is_counted(redis_server: RedisServer) -> None:
    counted = Counted()
    with redis.Redis.from_url(redis_server.url, retry=Retry(NoBackoff(), 0)) as client:
        redis_server.stop()
        with pytest.raises(MessageCoordinatorError):
            SyncMessageCoordinator(client, metrics=counted).send_message(ASKER, WORKER, mail(1))
    assert counted.told == [("error", 1)]


def test_a_broadcast_counts_and_tells_what_could_not_be_sent(redis_server: RedisServer) -> None:
    others = [AgentId(type="worker", instance=str(number)) for number in range(2)]
    counted, counted_in_a_loop = Counted(), Counted()

    async def broadcast() -> list[MessageResult]:
        retry = redis.asyncio.retry.Retry(NoBackoff(), 0)
        async with redis.asyncio.Redis.from_url(redis_server.url, retry=retry) as client:
            box = RedisMessageCoordinator(client, metrics=counted_in_a_loop)
            # It cannot be written either, and is to be written before anything is sent.
            box.subscribe_to_messages(WORKER, [MessageType.EVENT])
            return await box.broadcast_message(ASKER, mail(1), others)

    redis_server.stop()
    with redis.Redis.from_url(redis_server.url, retry=Retry(NoBackoff(), 0)) as client:
        box = SyncMessageCoordinator(client, metrics=counted)
        results = box.broadcast_message(ASKER, mail(1), others) + asyncio.run(broadcast())
    for result, other in zip(results, others * 2, strict=True):
        assert (result.message_id, result.delivered) == ("message-1", False)
        assert f"cannot send to {other}: ConnectionError" in (result.error or "")
    assert counted.told == counted_in_a_loop.told == [("error", 1)] * 2


def test_a_sink_that_fails_disturbs_nothing_and_is_told_once(
    client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    box = SyncMessageCoordinator(client, metrics=Broken())
    with caplog.at_level(logging.WARNING):
        live(box)
    assert box.depths(WORKER).dead == 1
    assert [record.__dict__["action"] for record in caplog.records] == ["metrics_failed"]


def test_prometheus_shows_what_was_counted(client: redis.Redis) -> None:
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry)
    box = SyncMessageCoordinator(client, metrics=metrics)
    live(box)
    metrics.show_depths(WORKER, box.depths(WORKER))
    shown = {
        "flowengine_messages_delivered_total": 2.0,
        "flowengine_messages_delivery_errors_total": 1.0,
        "flowengine_messages_retries_total": 2.0,
        "flowengine_messages_nacks_total": 3.0,
        "flowengine_messages_dead_total": 1.0,
    }
    assert {name: registry.get_sample_value(name) for name in shown} == shown
    labels = {"agent": "worker/1", "state": "dead"}
    assert registry.get_sample_value("flowengine_messages_waiting", labels) == 1.0

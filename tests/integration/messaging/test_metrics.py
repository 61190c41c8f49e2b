"""Metrics are complete, and their errors do not affect messages."""

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
from tests.integration.messaging.samples import ASKER, WORKER, sample
from tests.servers import RedisServer


class RecordingSink:
    """A sink that records its calls."""

    def __init__(self) -> None:
        self.counts: list[tuple[str, float]] = []

    def inc_delivered_ok(self, count: int) -> None:
        self.counts.append(("ok", count))

    def inc_delivered_error(self, count: int) -> None:
        self.counts.append(("error", count))

    def inc_retries_scheduled(self, count: int, last_backoff_seconds: float) -> None:
        self.counts.append(("retry", last_backoff_seconds))

    def inc_nacks(self, count: int) -> None:
        self.counts.append(("nack", count))

    def inc_permanent(self, count: int) -> None:
        self.counts.append(("permanent", count))


class BrokenSink(RecordingSink):
    """A sink whose methods all raise."""

    def __getattribute__(self, name: str) -> object:
        if name.startswith("inc_"):
            raise OSError("the disk is full")
        return super().__getattribute__(name)


def exercise(box: SyncMessageCoordinator) -> None:
    """Send, refuse, retry, and dead-letter messages."""
    box.configure(queue_size=2, retry_attempts=1, backoff_base=0)
    box.send_batch(ASKER, WORKER, [sample(1), sample(2), sample(3)])
    for _ in range(2):
        received = box.receive(WORKER)
        assert received is not None
        box.nack(WORKER, received.token, FailureType.TRANSIENT)
    first, second = box.receive_batch(WORKER, 2)
    box.nack(WORKER, first.token, FailureType.PERMANENT)
    box.ack(WORKER, second.token)


def test_every_refusal_retry_and_dead_letter_is_counted(client: redis.Redis) -> None:
    sink = RecordingSink()
    exercise(SyncMessageCoordinator(client, metrics=sink))
    assert sink.counts == [
        *(("ok", 2), ("error", 1)),
        *(("nack", 1), ("retry", 0.0)) * 2,
        *(("nack", 1), ("permanent", 1)),
    ]


def test_a_message_that_kills_its_consumers_is_counted_as_dead(client: redis.Redis) -> None:
    sink = RecordingSink()
    box = SyncMessageCoordinator(client, metrics=sink)
    box.configure(retry_attempts=0)
    box.send_message(ASKER, WORKER, sample(1))
    box.receive(WORKER, visibility_timeout=0)
    box.receive(WORKER)
    assert sink.counts == [("ok", 1), ("permanent", 1)]


def test_a_failed_send_is_counted(redis_server: RedisServer) -> None:
    sink = RecordingSink()
    with redis.Redis.from_url(redis_server.url, retry=Retry(NoBackoff(), 0)) as client:
        redis_server.stop()
        with pytest.raises(MessageCoordinatorError):
            SyncMessageCoordinator(client, metrics=sink).send_message(ASKER, WORKER, sample(1))
    assert sink.counts == [("error", 1)]


def test_a_broadcast_counts_and_reports_failed_sends(redis_server: RedisServer) -> None:
    others = [AgentId(type="worker", instance=str(number)) for number in range(2)]
    sink, async_sink = RecordingSink(), RecordingSink()

    async def broadcast() -> list[MessageResult]:
        retry = redis.asyncio.retry.Retry(NoBackoff(), 0)
        async with redis.asyncio.Redis.from_url(redis_server.url, retry=retry) as client:
            box = RedisMessageCoordinator(client, metrics=async_sink)
            # The subscription is written before the first send, and fails as well.
            box.subscribe_to_messages(WORKER, [MessageType.EVENT])
            return await box.broadcast_message(ASKER, sample(1), others)

    redis_server.stop()
    with redis.Redis.from_url(redis_server.url, retry=Retry(NoBackoff(), 0)) as client:
        box = SyncMessageCoordinator(client, metrics=sink)
        results = box.broadcast_message(ASKER, sample(1), others) + asyncio.run(broadcast())
    for result, other in zip(results, others * 2, strict=True):
        assert (result.message_id, result.delivered) == ("message-1", False)
        assert f"cannot send to {other}: ConnectionError" in (result.error or "")
    assert sink.counts == async_sink.counts == [("error", 1)] * 2


def test_a_failing_sink_is_logged_once_and_does_not_affect_messages(
    client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    box = SyncMessageCoordinator(client, metrics=BrokenSink())
    with caplog.at_level(logging.WARNING):
        exercise(box)
    assert box.depths(WORKER).dead == 1
    assert [record.__dict__["action"] for record in caplog.records] == ["metrics_failed"]


def test_prometheus_exposes_the_counts(client: redis.Redis) -> None:
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry)
    box = SyncMessageCoordinator(client, metrics=metrics)
    exercise(box)
    metrics.show_depths(WORKER, box.depths(WORKER))
    expected = {
        "flowengine_messages_delivered_total": 2.0,
        "flowengine_messages_delivery_errors_total": 1.0,
        "flowengine_messages_retries_total": 2.0,
        "flowengine_messages_nacks_total": 3.0,
        "flowengine_messages_dead_total": 1.0,
    }
    assert {name: registry.get_sample_value(name) for name in expected} == expected
    labels = {"agent": "worker/1", "state": "dead"}
    assert registry.get_sample_value("flowengine_messages_waiting", labels) == 1.0

"""Ticks of the watchdog do not pile up where nobody consumes them."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import redis
from celery import Celery
from celery.beat import Scheduler

from flowengine.assembly import FlowEngine
from flowengine.authoring import set_launcher_source
from flowengine.dispatch.publisher import Publisher
from flowengine.settings import Settings
from flowengine.tasks.celery_tasks import WATCHDOG
from tests.servers import RedisServer

INTERVAL = 5.0


class Beat:
    """A beat of an app with flowengine, whose clock the test moves."""

    def __init__(self, broker: str, queue: str) -> None:
        self.app = Celery("ticking", broker=broker, set_as_current=False)
        settings = Settings(control_queue=queue, watchdog_interval=INTERVAL)
        before = set_launcher_source(None)
        try:
            FlowEngine(self.app, settings=settings)
        finally:
            set_launcher_source(before)
        self.now = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
        self._scheduler = Scheduler(app=self.app)
        entry = self._scheduler.schedule[WATCHDOG]
        entry.schedule.nowfun = lambda: self.now
        entry.last_run_at = self.now
        self.queue = queue

    def run(self, seconds: float) -> int:
        """Let this time pass; return how many ticks were due."""
        before = self._scheduler.schedule[WATCHDOG].total_run_count
        ends = self.now + datetime.timedelta(seconds=seconds)
        while self.now < ends:
            self.now += datetime.timedelta(seconds=INTERVAL)
            self._scheduler.tick()
        return int(self._scheduler.schedule[WATCHDOG].total_run_count) - before

    def waiting(self) -> int:
        return Publisher(self.app).queue_length(self.queue)

    def consume(self) -> Any:
        with self.app.connection_for_read() as connection:
            queue = connection.SimpleQueue(self.app.amqp.queues[self.queue], no_ack=True)
            return queue.get(timeout=5)


@pytest.fixture(params=["redis", "memory", "filesystem"])
def make_beat(request: pytest.FixtureRequest, tmp_path: Any) -> Callable[[], Beat]:
    queue = f"control-{uuid.uuid4().hex}"

    def make() -> Beat:
        if request.param == "redis":
            server: RedisServer = request.getfixturevalue("redis_server")
            return Beat(server.url, queue)
        beat = Beat(f"{request.param}://", queue)
        if request.param == "filesystem":
            folders = {f"data_folder_{way}": str(tmp_path) for way in ("in", "out")}
            beat.app.conf.broker_transport_options = {**folders, "control_folder": str(tmp_path)}
        return beat

    return make


def test_one_tick_waits_while_nobody_consumes(make_beat: Callable[[], Beat]) -> None:
    beat = make_beat()
    assert beat.run(60) == 12, "the beat does its part"
    assert beat.waiting() == 1
    assert beat.consume().headers["task"] == WATCHDOG
    assert beat.waiting() == 0
    beat.run(INTERVAL)
    assert beat.waiting() == 1, "the next one is sent"


def test_an_hour_without_consumers_leaves_the_memory_of_redis_as_it_is(
    redis_server: RedisServer,
) -> None:
    beat = Beat(redis_server.url, "flowengine")
    with redis.Redis.from_url(redis_server.url) as client:

        def used() -> int:
            return int(client.info("memory")["used_memory"])

        beat.run(60)
        before = used()
        assert beat.run(3600) == 720
        assert client.llen("flowengine") == 1
        assert used() - before < 300_000, "720 ticks take more than twice as much"


def test_no_tick_is_sent_until_a_broker_that_was_away_is_asked_again(
    redis_server: RedisServer,
) -> None:
    beat = Beat(redis_server.url, "flowengine")
    beat.run(INTERVAL)
    assert beat.consume().headers["task"] == WATCHDOG
    publisher = beat.app.tasks[WATCHDOG]._publisher
    publisher._open_circuit(0.0)
    publisher._probe_at += 3600  # it asks no more for an hour
    beat.run(INTERVAL)
    assert beat.waiting() == 0
    publisher._probe_at -= 7200
    beat.run(INTERVAL)
    assert beat.waiting() == 1

"""A broker that hangs delays a start by a second; a queue without consumers stays short."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.acceptance.celery import graphs
from tests.acceptance.celery.conftest import QUICK_START, SOON, MakeFleet
from tests.celery_nodes import Fleet, LocalRedis, until
from tests.servers import RedisServer

FANOUT = 16  #: the default of `wakeup_fanout`


def _server() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.stop()


server = pytest.fixture(scope="module", name="server")(_server)
other_server = pytest.fixture(scope="module", name="other_server")(_server)


@pytest.fixture
def client_alone(make_fleet: MakeFleet, server: RedisServer) -> Iterator[Fleet]:
    """A client, a database and a broker; workers come later."""
    server.flush()
    fleet = make_fleet(broker=LocalRedis(server), backend=LocalRedis(server, vhost=1))
    yield fleet
    for worker in fleet.workers:
        worker.stop()


class Frozen:
    """A Redis that accepts connections and does not answer."""

    def __init__(self, url: str) -> None:
        with redis.Redis.from_url(url) as client:
            self._pid = client.info("server")["process_id"]

    def __enter__(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)

    def __exit__(self, *_: Any) -> None:
        os.kill(self._pid, signal.SIGCONT)


def test_a_start_returns_while_redis_hangs(client_alone: Fleet, server: RedisServer) -> None:
    def start() -> tuple[list[Any], list[Any]]:
        """Runs that send a wake-up, then runs that send a chord."""
        narrow = [client_alone.start(graphs.squared, n=n) for n in range(3)]
        wide = [client_alone.start(graphs.wide, numbers=list(range(60))) for _ in range(3)]
        return narrow, wide

    with Frozen(server.url):  # not connected yet
        began = time.monotonic()
        first = start()
        assert time.monotonic() - began < SOON
    before = client_alone.start(graphs.squared, n=0)
    with Frozen(server.url):
        began = time.monotonic()
        second = start()
        assert time.monotonic() - began < SOON
    client_alone.add_worker("late", *QUICK_START)
    for narrow, wide in (first, second):
        assert [run.result(timeout=30) for run in narrow] == [0, 1, 4]
        assert [run.result(timeout=30) for run in wide] == [sum(n * n for n in range(60))] * 3
    assert before.result(timeout=30) == 0


def test_a_start_returns_while_the_result_backend_hangs(
    make_fleet: MakeFleet, server: RedisServer, other_server: RedisServer
) -> None:
    fleet = make_fleet(broker=LocalRedis(server, vhost=2), backend=LocalRedis(other_server))
    with Frozen(other_server.url):
        began = time.monotonic()
        runs = [fleet.start(graphs.wide, numbers=list(range(60))) for _ in range(4)]
        assert time.monotonic() - began < SOON
    fleet.add_worker("late", *QUICK_START)
    assert {run.result(timeout=30) for run in runs} == {sum(n * n for n in range(60))}


def test_a_chord_is_sent_without_a_subscription(client_alone: Fleet, server: RedisServer) -> None:
    client_alone.start(graphs.wide, numbers=list(range(60)))
    with redis.Redis.from_url(server.url) as client:
        # A start waits for its messages for a second; on a busy machine they are sent later.
        until(lambda: client.llen("wide") >= 2, "the messages of 60 tasks")
        assert client.llen("wide") == 2, "one message for 50 tasks, one for 10"
        assert client.pubsub_channels() == []


def test_runs_that_no_worker_serves_leave_a_bounded_number_of_wakeups(
    client_alone: Fleet, server: RedisServer
) -> None:
    runs = []
    for n in range(150):
        runs.append(client_alone.start(graphs.squared, n=n))
        client_alone.engine.notifier.flush()  # one wake-up each, as from 150 processes
    with redis.Redis.from_url(server.url) as client:
        assert client.llen("wide") <= 2 * FANOUT
    client_alone.add_worker("late", *QUICK_START)
    assert [run.result(timeout=60) for run in runs] == [n * n for n in range(150)]

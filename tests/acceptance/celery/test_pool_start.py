"""Pool children that die before a worker has its broker do not end the worker."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.acceptance.celery import graphs
from tests.acceptance.celery.conftest import QUICK_START, MakeFleet
from tests.celery_nodes import LocalRedis, until
from tests.servers import RedisServer


@pytest.fixture
def server() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.stop()


def test_a_worker_replaces_children_that_died_while_it_waited_for_its_broker(
    make_fleet: MakeFleet, server: RedisServer
) -> None:
    fleet = make_fleet(broker=LocalRedis(server), backend=None)
    server.stop()
    worker = fleet.add_worker("waiting", *QUICK_START, wait=False)
    until(lambda: "Cannot connect to redis" in worker.logs(), "a first attempt to connect")
    dead = worker.children()
    for pid in dead:
        os.kill(pid, signal.SIGKILL)
    server.start()
    worker.wait_until_ready()
    assert fleet.start(graphs.squared, n=3).result(timeout=30) == 9
    assert len(dead) == 2
    assert not set(dead) & set(worker.children())

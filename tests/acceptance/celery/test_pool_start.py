"""Pool children that die before a worker has its broker do not end the worker."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterable, Iterator

import pytest

from tests.acceptance.celery import graphs
from tests.acceptance.celery.conftest import QUICK_START, MakeFleet
from tests.celery_nodes import LocalRedis, LocalWorker, RestartablePostgres, until
from tests.servers import RedisServer


@pytest.fixture
def server() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.stop()


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def living(worker: LocalWorker, dead: Collection[int]) -> list[int]:
    """Return the two children of a worker that came after those that died; before, nothing."""
    found = [pid for pid in worker.children() if pid not in dead]
    return found if len(found) == 2 else []


def test_a_worker_replaces_children_that_died_while_it_waited_for_its_broker(
    make_fleet: MakeFleet, server: RedisServer
) -> None:
    fleet = make_fleet(broker=LocalRedis(server), backend=None)
    server.stop()
    worker = fleet.add_worker("waiting", *QUICK_START, wait=False)
    until(lambda: "Cannot connect to redis" in worker.logs(), "a first attempt to connect")
    dead = worker.children()
    kill(dead)
    server.start()
    worker.wait_until_ready()
    assert fleet.start(graphs.squared, n=3).result(timeout=30) == 9
    assert len(dead) == 2
    assert not set(dead) & set(worker.children())


def test_a_worker_replaces_children_that_died_while_its_database_was_away_too(
    make_fleet: MakeFleet, server: RedisServer, postgres_away: RestartablePostgres
) -> None:
    fleet = make_fleet(
        broker=LocalRedis(server), backend=None, database_url=postgres_away.new_database()
    )
    server.stop()
    worker = fleet.add_worker("cut off", *QUICK_START, wait=False)
    until(lambda: "Cannot connect to redis" in worker.logs(), "a first attempt to connect")
    postgres_away.go_away()
    dead = worker.children()
    kill(dead)
    server.start()
    until(lambda: living(worker, dead), "children that start without the database")
    worker.wait_until_ready()
    postgres_away.come_back()
    assert fleet.start(graphs.squared, n=3).result(timeout=30) == 9
    assert len(dead) == len(living(worker, dead)) == 2

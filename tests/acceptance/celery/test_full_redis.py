"""A Redis at its memory limit refuses writes; no worker ends because of it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import redis

from tests.acceptance.celery import graphs
from tests.acceptance.celery.conftest import MakeFleet
from tests.celery_nodes import LocalRedis
from tests.servers import RedisServer


@pytest.fixture
def server() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.stop()


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.chaos)])
def test_workers_survive_a_redis_at_its_memory_limit(
    make_fleet: MakeFleet, server: RedisServer, pool: str
) -> None:
    fleet = make_fleet(broker=LocalRedis(server), backend=LocalRedis(server, vhost=1))
    for name in ("first", "second"):
        fleet.add_worker(name, "-E", f"--pool={pool}", wait=False)
    fleet.add_beat()
    fleet.heal()
    pids = [worker.pid for worker in fleet.workers]
    with redis.Redis.from_url(server.url) as client:
        runs = [fleet.start(graphs.mixed, n=n) for n in range(4)]
        runs += [fleet.start(graphs.wide, numbers=list(range(120))) for n in range(2)]
        client.config_set("maxmemory", "1")
        time.sleep(3)
        client.config_set("maxmemory", "0")
        for n, run in enumerate(runs):
            expected = graphs.expected(n) if n < 4 else sum(i * i for i in range(120))
            assert run.result(timeout=60) == expected
    assert [worker.pid for worker in fleet.workers if worker.is_alive()] == pids, fleet.logs()[
        -9000:
    ]

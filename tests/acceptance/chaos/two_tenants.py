"""A fleet that an ordinary and a hostile tenant share."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.acceptance.celery.conftest import QUICK_START
from tests.acceptance.chaos import hostile_tenant as hostile_process
from tests.acceptance.chaos import tenants_work
from tests.celery_nodes import Fleet, LocalRedis
from tests.celery_nodes.processes import GuardedProcess
from tests.servers import PostgresServer, RedisServer

_MAX_SECONDS = 120  #: until a run of the ordinary tenant counts as not served


@contextmanager
def fleet(postgres: PostgresServer, redis: RedisServer, directory: Path) -> Iterator[Fleet]:
    """Two workers with two pool children each, and a beat."""
    made = Fleet(
        directory,
        broker=LocalRedis(redis),
        backend=LocalRedis(redis, vhost=1),
        database_url=postgres.new_database(),
        imports=tenants_work.__name__,
        FLOWENGINE_SERVER_TIMEOUT="30",
        FLOWENGINE_HEARTBEAT_INTERVAL="5",
        FLOWENGINE_WATCHDOG_INTERVAL="5",
    )
    try:
        for name in ("first", "second"):
            made.add_worker(name, *QUICK_START, "--concurrency=2", wait=False)
        made.add_beat()
        for worker in made.workers:
            worker.wait_until_ready()
        yield made
    finally:
        made.close()


@contextmanager
def hostile_tenant(fleet: Fleet, seed: int) -> Iterator[GuardedProcess]:
    process = GuardedProcess(
        [sys.executable, "-m", hostile_process.__name__, str(seed)],
        name="hostile",
        directory=fleet.directory / "hostile",
        environment=fleet.environment,
        ready_prompt=hostile_process.READY,
    )
    try:
        process.start()
        yield process
    finally:
        process.stop()


def last_line(process: GuardedProcess) -> str:
    return process.logs().decode().splitlines()[-1]


def ordinary_runs(fleet: Fleet, count: int) -> list[float]:
    """Run the ordinary workflow, one run after the other; return the seconds of each."""
    seconds = []
    for n in range(count):
        began = time.monotonic()
        work = tenants_work.order
        run = fleet.engine.start(work.program(), work.name, {"n": n}, tenant="ordinary")
        assert run.result(timeout=_MAX_SECONDS) == tenants_work.expected(n)
        seconds.append(time.monotonic() - began)
    return seconds

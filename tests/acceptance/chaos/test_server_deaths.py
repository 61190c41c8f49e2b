"""Killed workers are found dead within seconds, and living ones are not.

`FALSE_DEATH_SECONDS=3600` disturbs a fleet for an hour.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from statistics import median

import pytest

from tests.acceptance.chaos import server_deaths
from tests.celery_nodes import RestartablePostgres
from tests.servers import PostgresServer, RedisServer

pytestmark = pytest.mark.chaos


@pytest.fixture
def restartable() -> Iterator[RestartablePostgres]:
    server = RestartablePostgres()
    yield server
    server.stop()


def test_ten_killed_workers_are_found_dead_by_their_locks(
    postgres: PostgresServer, redis_server: RedisServer, tmp_path: Path
) -> None:
    with server_deaths.fleet(postgres, redis_server, tmp_path / "fleet") as fleet:
        found = [
            server_deaths.seconds_until_claimed_again(fleet, f"kill{number}")
            for number in range(10)
        ]
        print(f"\nseconds until claimed again: {' '.join(f'{seconds:.2f}' for seconds in found)}")
        print(f"median {median(found):.2f}")
        assert fleet.count_logged("has ended; 1 step that it held will run again") == 10
        assert fleet.count_logged("missed its heartbeat") == 0


def test_no_living_worker_is_declared_dead(
    restartable: RestartablePostgres, redis_server: RedisServer, tmp_path: Path, chaos_seed: int
) -> None:
    seconds = float(os.environ.get("FALSE_DEATH_SECONDS", "180"))
    with server_deaths.fleet(restartable, redis_server, tmp_path / "fleet") as fleet:
        runs = server_deaths.hold_all_children(fleet)
        faults = server_deaths.disturb(fleet, restartable, Random(chaos_seed), seconds)
        deaths = server_deaths.false_deaths(fleet)
        print(f"\nseed {chaos_seed}: {dict(Counter(faults))}; false deaths: {deaths}")
        assert deaths == 0, fleet.logs()
        fleet.let_all_go()
        for run in runs:
            run.result(timeout=60)
            assert [task.losses for task in fleet.engine.tasks(run.id)] == [0]

"""Faults of every kind, drawn from a seed: each run ends as the model says, once.

A failure is repeated by its seed: `make test-chaos ARGS="--chaos-seed 7"`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.acceptance.celery.conftest import QUICK_START
from tests.acceptance.chaos import novelties, schedule, workflows
from tests.acceptance.chaos.faults import FAULTS, Scene, heal
from tests.acceptance.chaos.load import Load, wait_and_check
from tests.acceptance.chaos.spool_disk import SpoolDisk
from tests.celery_nodes import Fleet, LocalRedis, RestartablePostgres
from tests.conftest import CHAOS_SEEDS
from tests.servers import RedisServer

pytestmark = pytest.mark.chaos


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each seed, counted from the first: names must not depend on a random seed."""
    if "seed_number" in metafunc.fixturenames:
        metafunc.parametrize("seed_number", range(metafunc.config.stash[CHAOS_SEEDS]))


@pytest.fixture
def postgres() -> Iterator[RestartablePostgres]:
    server = RestartablePostgres()
    yield server
    server.stop()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SpoolDisk]:
    made = SpoolDisk(tmp_path / "spool")
    yield made
    made.close()


@pytest.fixture
def fleet(
    postgres: RestartablePostgres, redis_server: RedisServer, disk: SpoolDisk, tmp_path: Path
) -> Iterator[Fleet]:
    """Two workers and a beat of the newer version, with the spool on a small disk."""
    made = Fleet(
        tmp_path / "fleet",
        broker=LocalRedis(redis_server),
        backend=LocalRedis(redis_server, vhost=1),
        database_url=postgres.new_database(),
        imports=f"{workflows.__name__},{novelties.__name__}",
        FLOWENGINE_SPOOL_DIRECTORY=str(disk.directory),
    )
    for name in ("first", "second"):
        made.add_worker(name, *QUICK_START, wait=False)
    made.add_beat()
    for worker in made.workers:
        worker.wait_until_ready()
    yield made
    made.close()


def test_every_run_ends_as_the_model_says_whatever_fails(
    fleet: Fleet,
    postgres: RestartablePostgres,
    disk: SpoolDisk,
    chaos_seed: int,
    seed_number: int,
) -> None:
    seed = chaos_seed + seed_number
    lots = Random(seed)
    rounds = schedule.draw(lots)
    scene = Scene(fleet, postgres, disk, lots)
    load = Load(fleet, lots)
    ended: list[str] = []
    began = time.monotonic()
    print(f"\nseed {seed}")
    for number, each in enumerate(rounds, 1):
        print(f"round {number}, {time.monotonic() - began:.0f} s: {each}")
        load.start(8)
        time.sleep(each.delay)
        for name in each.faults:
            FAULTS[name].inject(scene)
        during = load.start_during_a_fault(2)
        retried = load.retry_during_a_fault(2)
        time.sleep(each.lasts)
        heal(scene, each.faults)
        load.start_again(during)
        retried.result(timeout=120)
        load.retry(4)
        ended += restart_ended_nodes(fleet)
    load.start(8)
    load.close()
    wait_and_check(fleet.engine, load.expected, 180)
    took = f"{len(load.expected)} runs, {load.retries} retries in {time.monotonic() - began:.0f} s"
    print(f"seed {seed}: {took}")
    assert load.retries >= 8, f"{load.refused} were refused"
    assert ended == [], "nodes end by a fault, never by themselves"


def restart_ended_nodes(fleet: Fleet) -> list[str]:
    """Restart nodes that ended without being asked to; return their names and last words."""
    ended = []
    for node in fleet.nodes:
        if not node.is_alive():
            ended.append(f"{node.name}: {node.logs().strip()[-300:]}")
            node.start()
    return ended

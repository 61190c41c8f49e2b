"""Sync and async facets in each of Celery's pools that runs steps; prefork is everywhere else."""

from __future__ import annotations

import pytest

from tests.acceptance.celery import coroutines, graphs
from tests.acceptance.celery.conftest import QUICK_START, SHUTDOWN, MakeFleet


@pytest.mark.parametrize("pool", ["solo", pytest.param("threads", marks=pytest.mark.chaos)])
def test_a_pool_of_one_process_runs_sync_and_async_facets(make_fleet: MakeFleet, pool: str) -> None:
    fleet = make_fleet(f"{graphs.__name__},{coroutines.__name__}")
    worker = fleet.add_worker(pool, f"--pool={pool}", "--concurrency=2", *QUICK_START)
    many = fleet.start(coroutines.gathering, name=pool, numbers=[1, 2, 3, 4], number=4)
    assert many.result(timeout=30) == [worker.pid] * 4, "all at once, in one process"
    assert fleet.start(graphs.squared, n=3).result(timeout=30) == 9
    told = fleet.start(graphs.told, n=3)
    assert told.result(timeout=30) == worker.pid
    assert [line.text for line in told.logs()] == ["printed 3", "logged 3"]
    worker.terminate()
    assert worker.wait(SHUTDOWN) == 0

"""A run that fails, is retried and then retried from a step, for a test that kills its process."""

from __future__ import annotations

import os
from pathlib import Path

from flowengine import event_facet, foreach, workflow
from flowengine.errors import RunFailed
from flowengine.store.postgres.database import PostgresDatabase
from flowengine.store.sqlite.database import SqliteDatabase
from tests.acceptance.thirty_steps import kill_at

EXPECTED = 44


@event_facet
def weigh(n: int) -> int:
    return n * 2


@event_facet
def pack(n: int) -> int:
    if n == 4 and not Path(os.environ["HEALED"]).exists():
        raise ValueError("the box is torn")
    return n + 1


@event_facet
def ship(boxes: list[int]) -> int:
    return sum(boxes)


@workflow
def parcel(n: int) -> int:
    return pack(weigh(n))


@workflow
def parcels() -> int:
    return ship(foreach(list(range(1, 6)), lambda n: parcel(n))) + 9


def run_and_die(url: str, commits: int, moment: str, healed: str) -> None:
    """Run and retry the workflow; kill this process at its n-th commit. 0: let it live."""
    os.environ["FLOWENGINE_DATABASE_URL"] = url
    os.environ["FLOWENGINE_CONCURRENCY"] = "2"
    os.environ["FLOWENGINE_WATCHDOG_INTERVAL"] = "0.05"
    os.environ["HEALED"] = healed
    if commits:
        kill_at(
            PostgresDatabase if url.startswith("postgresql") else SqliteDatabase, commits, moment
        )
    run = parcels.options(key="the one").start()
    try:
        run.result(timeout=60)
    except RunFailed:
        Path(healed).touch()
        run.retry(key="first")  # a second time it changes nothing
        run.result(timeout=60)
    run.retry(from_step="parcels.foreach[2].parcel.pack", key="second")
    assert run.result(timeout=60) == EXPECTED

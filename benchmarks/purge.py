"""Purge of a million steps while runs go on: `python -m benchmarks.purge --url postgresql+psycopg://…`

Fills a database with ended runs of 1,000 steps (one run is executed, its rows are copied under new
ids), measures small runs alone, then small runs beside a purge of all the others, and prints
counts and times. The database is filled: give it one of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import threading
import time
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, text

from flowengine import event_facet, foreach, workflow
from flowengine.authoring import event_facet_names
from flowengine.engine import Engine
from flowengine.settings import Settings
from flowengine.store import Database, ensure_schema
from flowengine.store.claims import WorkerIdentity
from flowengine.store.tables import metadata
from flowengine.worker import TaskWorker

_WIDTH = 997  #: items of the copied run: with the loop, its block and the root, 1,000 steps
#: Tables of a run's rows, with the columns that hold ids of the run.
_COPIED = {
    "flowengine_step": ("id", "run_id"),
    "flowengine_task": ("uuid", "run_id", "step_id"),
    "flowengine_event": ("id", "run_id", "step_id"),
    "flowengine_history": ("run_id",),
}


@event_facet(name="benchmarks.purge.work")
def work(n: int) -> int:
    return n


@workflow(name="benchmarks.purge.wide")
def wide(ns: list[int]) -> list[int]:
    return foreach(ns, lambda n: work(n))


@workflow(name="benchmarks.purge.small")
def small(n: int) -> int:
    return work(work(work(n)))


def fill(engine: Engine, worker: TaskWorker, copies: int) -> None:
    """Execute one run, and copy its rows."""
    run = engine.start(wide.program(), wide.name, {"ns": list(range(_WIDTH))})
    while not run.info().is_final:
        worker.drain("default")
        engine.advance(run.id)
    for number in range(copies - 1):
        new = hashlib.blake2b(f"{run.id}{number}".encode(), digest_size=16).hexdigest()
        with engine.database.write() as session:
            _copy(session.connection, run.id, new)


def _copy(connection: Connection, old: str, new: str) -> None:
    tables = {"flowengine_run": ("id", "root_run_id"), **_COPIED}
    for name, ids in tables.items():
        columns = [column.name for column in metadata.tables[name].columns]
        whole = {"run_id", "root_run_id"} | ({"id"} if name == "flowengine_run" else set())
        values = [
            "CAST(:new AS varchar)"
            if column in ids and column in whole
            else f"substr(CAST(:new AS varchar), 1, 12) || substr({column}, 13)"
            if column in ids
            else f'"{column}"'
            for column in columns
        ]
        key = "id" if name == "flowengine_run" else "run_id"
        names = ", ".join(f'"{column}"' for column in columns)
        query = f"INSERT INTO {name} ({names}) SELECT {', '.join(values)} FROM {name}"
        connection.execute(text(f"{query} WHERE {key} = :old"), {"old": old, "new": new})


def small_runs(engine: Engine, worker: TaskWorker, seconds: float) -> list[float]:
    """Run small runs one after the other; return how long each took, in milliseconds."""
    times = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        begin = time.perf_counter()
        run = engine.start(small.program(), small.name, {"n": 1})
        while not run.info().is_final:
            worker.drain("default")
        times.append(1000 * (time.perf_counter() - begin))
    return times


def measure(url: str, steps: int, seconds: float) -> dict[str, Any]:
    database = Database(url)
    ensure_schema(database, upgrade=True)
    engine = Engine(database, settings=Settings(quick_seconds=1, worker_time_slice=60))
    try:
        worker = TaskWorker(engine, WorkerIdentity("s", "b" * 32, 1), event_facet_names)
        fill(engine, worker, max(1, steps // 1_000))
        with database.write() as session:
            session.connection.execute(text("ANALYZE"))
            session.connection.execute(text("UPDATE flowengine_run SET created = 1, finished = 2"))
        small_runs(engine, worker, 1.0)
        alone = small_runs(engine, worker, seconds)
        done: list[Any] = []
        begin = time.perf_counter()
        purge = threading.Thread(
            target=lambda: done.append(engine.purge(older_than=timedelta(days=365)))
        )
        purge.start()
        beside: list[float] = []
        while purge.is_alive():
            beside += small_runs(engine, worker, 0.5)
        purge.join()
        took = time.perf_counter() - begin
        with database.read() as session:
            left = session.connection.execute(
                text(
                    "SELECT count(*) FROM flowengine_step s WHERE s.created < 0 OR NOT EXISTS "
                    "(SELECT 1 FROM flowengine_run r WHERE r.id = s.run_id)"
                )
            ).scalar_one()
        return {
            "removed": done[0],
            "seconds": round(took, 1),
            "orphans": left,
            "small runs alone": len(alone),
            "median alone, ms": round(statistics.median(alone), 2),
            "small runs beside": len(beside),
            "median beside, ms": round(statistics.median(beside), 2),
            "violated": [one.invariant for one in engine.doctor()],
        }
    finally:
        engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    for name, value in measure(arguments.url, arguments.steps, arguments.seconds).items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()

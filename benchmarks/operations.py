"""The cost of an installation: growth of the database, memory, and transactions while it idles.

One worker with four pool children and a beat, with the default settings, on a private PostgreSQL
and Redis. Counts and sizes, no times; docs/operations.md has them under Sizing.

    PYTHONPATH=. python -m benchmarks.operations --runs 1000
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import psycopg

from benchmarks.processes import GuardedProcess, clean_environment, python
from benchmarks.servers import private_servers
from flowengine import event_facet, foreach, workflow
from flowengine.engine import Engine
from flowengine.store import Database, upgrade_schema

log = logging.getLogger(__name__)


@event_facet(name="operations.work")
def work(n: int) -> int:
    if n % 7 == 0:
        log.info("item %d is worked on", n)
    return n + 1


@event_facet(name="operations.add")
def add(ns: list[int]) -> int:
    return sum(ns)


@workflow(name="operations.order")
def order(n: int) -> int:
    """17 tasks: one, a loop of five items with three each, and one that joins them."""
    first = work(n)
    parts = foreach([0, 1, 2, 3, 4], lambda item: work(work(work(item))))
    return add.after(first)(parts)


def pss(pids: list[int]) -> float:
    """Return the memory of processes in MB; what they share is divided among them."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1024


def tree(pid: int) -> list[int]:
    """Return the processes below one."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid for child in map(int, children) for pid in (child, *tree(child))]


@contextmanager
def celery(directory: Path, environment: dict[str, str], *words: str) -> Iterator[list[int]]:
    """Start a command of Celery; yields its processes, the main one first."""
    process = GuardedProcess(
        python("-m", "celery", "-A", "flowengine", *words, "--loglevel=WARNING"),
        directory=directory,
        environment=environment,
        log=directory / f"{words[0]}.log",
    )
    try:
        time.sleep(15)  # it imports, forks and registers
        yield [pid for pid in tree(process.pid) if _words(pid)[0] == sys.executable]
    finally:
        process.stop()


def _words(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def transactions(connection: psycopg.Connection[object], seconds: float) -> float:
    """Return how many transactions a second the database commits while nothing is to do."""

    def count() -> int:
        connection.execute("SELECT pg_stat_clear_snapshot()")
        row = connection.execute(
            "SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database "
            "WHERE datname = current_database()"
        ).fetchone()
        assert row is not None
        return int(row[0])  # type: ignore[call-overload]

    time.sleep(2)
    before, began = count(), time.monotonic()
    time.sleep(seconds)
    return (count() - before) / (time.monotonic() - began)


def size(connection: psycopg.Connection[object]) -> float:
    connection.execute("CHECKPOINT")
    row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    assert row is not None
    return int(row[0]) / 1e6  # type: ignore[call-overload]


@click.command()
@click.option("--runs", default=1_000, show_default=True)
@click.option("--idle-seconds", default=30.0, show_default=True)
def main(runs: int, idle_seconds: float) -> None:
    """Print growth, memory and idle load."""
    with private_servers() as servers, tempfile.TemporaryDirectory() as folder:
        url, broker = servers.new_database(), servers.new_broker()
        environment = clean_environment(
            FLOWENGINE_DATABASE_URL=url,
            FLOWENGINE_BROKER_URL=broker,
            FLOWENGINE_IMPORTS="benchmarks.operations",
        )
        database = Database(url)
        upgrade_schema(database)
        engine = Engine(database)
        with (
            servers.connect(url) as connection,
            celery(Path(folder), environment, "worker", "--concurrency=4") as workers,
        ):
            empty = size(connection)
            click.echo(f"idle, without a beat: {transactions(connection, idle_seconds):.1f} tx/s")
            with celery(Path(folder), environment, "beat") as beats:
                click.echo(f"idle, with a beat: {transactions(connection, idle_seconds):.1f} tx/s")
                click.echo(f"memory idle: worker {pss(workers):.0f} MB, beat {pss(beats):.0f} MB")
                for n in range(runs):
                    engine.start(order.program(), order.name, {"n": n})
                while engine.list(state="RUNNING", limit=1):
                    time.sleep(0.5)
                time.sleep(10)  # counters are flushed, and it is idle again
                click.echo(
                    f"database: {empty:.1f} MB empty, {size(connection):.1f} MB after {runs} runs"
                )
                for name, megabytes in connection.execute(
                    "SELECT relname, pg_total_relation_size(oid) / 1e6 FROM pg_class "
                    "WHERE relkind = 'r' AND relname LIKE 'flowengine%' ORDER BY 2 DESC LIMIT 6"
                ):
                    click.echo(f"  {name}: {megabytes:.1f} MB")
                click.echo(
                    f"memory after {runs} runs: worker {pss(workers):.0f} MB, "
                    f"main {pss(workers[:1]):.0f} MB, a child {pss(workers[1:2]):.0f} MB"
                )
                click.echo(f"idle again: {transactions(connection, idle_seconds):.1f} tx/s")
        engine.close()


if __name__ == "__main__":
    main()

"""The private servers of a benchmark, and what a commit costs on their disk."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import redis

from tests.servers import PostgresServer, RedisServer

#: Settings of PostgreSQL in the report. Only max_connections is changed.
_REPORTED = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers")


@dataclass(frozen=True)
class Commits:
    """Milliseconds that one committed row takes; medians."""

    durable: float  #: as it comes: synced before the commit returns
    unsynced: float  #: for comparison, with synchronous_commit off

    def __str__(self) -> str:
        return f"commit {self.durable:.2f} ms (without waiting for the disk {self.unsynced:.2f})"


@dataclass
class Servers:
    """One PostgreSQL and one Redis, shared by all contenders; each has its own databases."""

    postgres: PostgresServer
    redis: RedisServer
    _next_redis_database: int = field(default=0)

    def new_database(self) -> str:
        """An empty PostgreSQL database, as an SQLAlchemy URL."""
        return self.postgres.new_database()

    def new_broker(self) -> str:
        """An empty database of Redis."""
        number = self._next_redis_database
        self._next_redis_database = (number + 1) % 16
        url = f"{self.redis.url.rpartition('/')[0]}/{number}"
        with redis.Redis.from_url(url) as client:
            client.flushdb()
        return url

    def connect(self, url: str | None = None) -> psycopg.Connection[Any]:
        found = (url or self.postgres.url).replace("+psycopg", "")
        return psycopg.connect(found, autocommit=True)

    def measure_commits(self, times: int = 60) -> Commits:
        """Insert single rows, each in a transaction of its own."""
        with self.connect() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS commits (x int)")
            durable = _median_insert(connection, times)
            connection.execute("SET synchronous_commit = off")
            return Commits(durable, _median_insert(connection, times))

    def describe(self) -> dict[str, str]:
        with self.connect() as connection:
            settings = {name: connection.execute(f"SHOW {name}").fetchone() for name in _REPORTED}
        with redis.Redis.from_url(self.redis.url) as client:
            version = client.info("server")["redis_version"]
        postgres = {f"postgresql {name}": str(row[0]) for name, row in settings.items() if row}
        return {**postgres, "redis": f"{version}, persistence off"}

    def close(self) -> None:
        self.redis.stop()
        self.postgres.stop()


@contextmanager
def private_servers() -> Iterator[Servers]:
    """Start both, and stop them at the end, also after an error."""
    servers = Servers(PostgresServer(), RedisServer())
    try:
        yield servers
    finally:
        servers.close()


def _median_insert(connection: psycopg.Connection[Any], times: int) -> float:
    taken = []
    for number in range(times):
        begun = time.perf_counter()
        connection.execute("INSERT INTO commits VALUES (%s)", (number,))
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken) * 1000

"""A connection that is in use while its database is closed is closed by its return."""

from __future__ import annotations

import os
import sqlite3
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.pool import Pool

from flowengine.store import Database
from flowengine.store.connection_pool import ConnectionPool
from tests.integration.threads import wait_until
from tests.servers import PostgresServer


@pytest.fixture
def url(postgres: PostgresServer) -> Any:
    url = postgres.new_database()
    yield url
    postgres.drop_database(url)


@pytest.mark.parametrize("kind", ["autocommit", "read", "write"])
def test_a_connection_that_returns_after_the_end_of_its_database_is_closed(
    url: str, kind: str
) -> None:
    database = Database(url)
    with getattr(database, kind)() as session:
        driver: psycopg.Connection[Any] = session.executor._driver
        database.close()
    assert driver.closed
    database.close()


def test_a_kept_connection_is_closed_with_the_thread_that_kept_it(url: str) -> None:
    database = Database(url)
    with database.keep_connection():
        with database.autocommit() as session:
            session.rows("SELECT 1")
            driver: psycopg.Connection[Any] = session.executor._driver
        database.close()
        assert not driver.closed
    assert driver.closed
    database.close()


def test_a_connection_that_is_opened_while_its_pool_is_disposed_of_is_closed(url: str) -> None:
    database = Database(url)

    @event.listens_for(database.engine, "do_connect")
    def _dispose(*_event: object) -> None:  # by another thread, which found the server restarted
        database.engine.dispose()

    with database.autocommit() as session:
        driver: psycopg.Connection[Any] = session.executor._driver
    assert driver.closed
    database.close()


def test_a_connection_that_returns_before_its_pool_is_replaced_is_closed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(url)
    used = database.autocommit()
    driver: psycopg.Connection[Any] = used.__enter__().executor._driver
    old = database.engine.pool
    recreate = old.recreate

    def return_first() -> Pool:
        used.__exit__(None, None, None)
        return recreate()

    monkeypatch.setattr(old, "recreate", return_first)
    database.engine.dispose()
    assert database.engine.pool is not old
    assert driver.closed
    database.close()


def test_a_thread_that_waits_for_a_disposed_pool_gets_the_next_connection(tmp_path: Path) -> None:
    engine = create_engine(
        f"sqlite:///{tmp_path}/x.db", poolclass=ConnectionPool, pool_size=1, max_overflow=0
    )
    used, pool = engine.raw_connection(), engine.pool
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pool.connect)
        wait_until(lambda: pool._pool.not_empty._waiters, "the thread waits")  # type: ignore[attr-defined]
        engine.dispose()
        used.close()
        got = waiting.result(pool.timeout() / 2)  # type: ignore[attr-defined]
    driver = got.driver_connection
    got.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        driver.execute("SELECT 1")
    engine.dispose()


def test_connections_are_used_again_while_the_database_is_open(url: str) -> None:
    database = Database(url)
    seen = set()
    for _ in range(3):
        with database.read() as session:
            seen.add(id(session.executor._driver))
            kept = session.executor._driver  # else another object may have its address
    assert len(seen) == 1
    assert not kept.closed
    database.close()


@pytest.mark.parametrize("is_disposed", [False, True])
def test_a_forked_child_does_not_end_the_session_of_its_parent(url: str, is_disposed: bool) -> None:
    database = Database(url)
    used = database.autocommit()
    session = used.__enter__()
    if is_disposed:
        database.engine.dispose()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of other tests
        child = os.fork()
    if child == 0:
        try:
            used.__exit__(None, None, None)  # to the pool of the parent, which is not the child's
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert session.rows("SELECT 1") == [(1,)]
    used.__exit__(None, None, None)
    database.close()

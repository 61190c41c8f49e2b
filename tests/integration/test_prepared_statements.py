"""Prepared statements that the server no longer has are prepared again.

psycopg sends DEALLOCATE ALL on its connection after a ROLLBACK, and that drops the statements
the engine prepared there, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from flowengine.engine import Engine
from flowengine.errors import DatabaseReadOnly
from flowengine.evaluator import RunState
from flowengine.evaluator.triggers import Report, Succeeded
from tests.integration.engines import chain, claim


@contextmanager
def admin(engine: Engine) -> Iterator[psycopg.Connection]:
    url = engine.database.url.set(drivername="postgresql")
    address = url.render_as_string(hide_password=False)
    with psycopg.connect(address, autocommit=True) as connection:
        yield connection


def start(engine: Engine) -> str:
    """Start a run as a worker starts a child run: on a connection that its thread keeps."""
    with engine.database.keep_connection():
        return engine.start(chain("a"), "Flow", {}).id


def prepare(engine: Engine) -> str:
    """Prepare, on the one pooled connection, the statement that starts a run."""
    run = start(engine)
    for _ in range(3):  # psycopg prepares a statement it has seen before
        engine.advance(run)
    assert engine.database.engine.pool.checkedin() == 1  # type: ignore[attr-defined]
    return run


def finish(engine: Engine, run: str) -> None:
    start(engine)
    with engine.database.keep_connection():
        accepted, _ = engine.report_many([Report(claim(engine), Succeeded({"y": 1}))])
        assert accepted
    assert engine.get(run).state == RunState.COMPLETED


def roll_back(engine: Engine) -> None:
    with pytest.raises(ZeroDivisionError), engine.database.write():
        raise ZeroDivisionError


def test_a_rollback_on_the_connection_costs_no_prepared_statement(on_postgres: Engine) -> None:
    run = prepare(on_postgres)
    roll_back(on_postgres)
    finish(on_postgres, run)


def test_a_statement_that_was_deallocated_is_prepared_again(on_postgres: Engine) -> None:
    run = prepare(on_postgres)
    with on_postgres.database.engine.connect() as connection, connection.begin():
        connection.execute(text("DEALLOCATE ALL"))
    finish(on_postgres, run)


def test_runs_go_on_after_the_database_was_read_only(on_postgres: Engine) -> None:
    run = prepare(on_postgres)
    with admin(on_postgres) as connection:
        set_read_only(connection, "on")
        try:
            wait_until(lambda: is_read_only(on_postgres))
            with pytest.raises(DatabaseReadOnly):
                on_postgres.continue_step(on_postgres.steps(run)[-1].id, {"y": 1})
        finally:
            set_read_only(connection, "off")
        wait_until(lambda: not is_read_only(on_postgres))
    finish(on_postgres, run)


def test_runs_go_on_after_a_statement_was_cancelled(on_postgres: Engine) -> None:
    run = prepare(on_postgres)
    with (
        ThreadPoolExecutor(1) as thread,
        admin(on_postgres) as connection,
        connection.transaction(),
    ):
        connection.execute("SELECT id FROM flowengine_run FOR UPDATE")
        waiting = thread.submit(on_postgres.advance, run)
        wait_until(lambda: cancel_waiting(connection))
        with pytest.raises(DBAPIError, match="canceling statement"):
            waiting.result(10)
    finish(on_postgres, run)


def set_read_only(connection: psycopg.Connection, value: str) -> None:
    connection.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}".encode())
    connection.execute("SELECT pg_reload_conf()")


def is_read_only(engine: Engine) -> bool:
    with engine.database.read() as connection:
        return connection.execute(text("SHOW transaction_read_only")).scalar() == "on"


def cancel_waiting(connection: psycopg.Connection) -> bool:
    found = connection.execute(
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    ).fetchall()
    return bool(found)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)

"""How connections to each kind of database are made, and what they are told at first."""

from __future__ import annotations

import math
import sqlite3
import threading
import time
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import StaticPool

from flowengine.errors import StoreError

_SQLITE_PATIENCE = 30.0  #: seconds that a connection waits for its turn
_IDLE_LIMIT = 30.0  #: seconds that a transaction may stand still
#: Key in a connection's info: the statements prepared on it, by text.
PREPARED = "flowengine_prepared"
UNUSED = 1.0  #: seconds after which a pooled connection is tried before it is used


def sqlite_engine(url: str) -> Engine:
    in_memory = make_url(url).database in (None, "", ":memory:")
    options: dict[str, Any] = {
        "connect_args": {"check_same_thread": False, "timeout": _SQLITE_PATIENCE}
    }
    if in_memory:
        options["poolclass"] = StaticPool
    engine = create_engine(url, **options)

    @event.listens_for(engine, "connect")
    def _prepare(raw: Any, _record: object) -> None:
        raw.isolation_level = None  # transactions begin below, where it is said how
        cursor = raw.cursor()
        _write_ahead(cursor)
        # The log is carried over into the file when it has 16 MB instead of 4: what a step
        # touches is touched again by the next, and is carried over once for all of them.
        for pragma in ("synchronous = FULL", "temp_store = MEMORY", "wal_autocheckpoint = 4000"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A transaction that reads first and writes later would have to give up when another
        # has written in between. One that may write therefore takes its turn at the start.
        writes = connection.get_execution_options().get("flowengine_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _write_ahead(cursor: Any) -> None:
    """Have SQLite keep a write-ahead log.

    The first to open a new file changes its mode, for which it must be alone. SQLite does not
    wait for that as it waits for everything else, so we do.
    """
    deadline = time.monotonic() + _SQLITE_PATIENCE
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as problem:
            if "locked" not in str(problem) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def postgres_engine(url: str, pinging: threading.local) -> Engine:
    parsed = make_url(url)
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    try:
        # All that is begun here is ended here: nothing has to be put in order afterwards.
        engine = create_engine(parsed, pool_size=16, max_overflow=16, pool_reset_on_return=None)
    except ModuleNotFoundError as missing:
        raise StoreError(
            f"PostgreSQL needs the driver {missing.name!r}: pip install 'flowengine[postgres]'"
        ) from missing

    @event.listens_for(engine, "connect")
    def _prepare(raw: Any, _record: object) -> None:
        raw.autocommit = True  # a statement by itself is a transaction; others begin below
        # A process that is stopped in the middle of a transaction holds its locks, and those
        # of one run or of the watchdog make others wait. The server ends it after a while.
        raw.execute(f"SET idle_in_transaction_session_timeout = {_IDLE_LIMIT * 1000:.0f}")
        # All that is asked for again and again is found by an index. A plan that was made, and
        # kept, while the tables were tiny would read them whole for ever after.
        raw.execute("SET enable_seqscan = off; SET enable_hashjoin = off")
        raw.execute("SET enable_mergejoin = off; SET plan_cache_mode = force_generic_plan")
        # A statement with a wrong estimate is not worth being compiled for a tenth of a second.
        raw.execute("SET jit = off")
        raw.prepare_threshold = 1

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    @event.listens_for(engine, "rollback")
    def _forget_prepared(connection: Connection) -> None:
        # psycopg sends DEALLOCATE ALL after a ROLLBACK.
        if not connection.invalidated:
            connection.info.pop(PREPARED, None)

    @event.listens_for(engine, "checkin")
    def _used(_raw: Any, record: Any) -> None:
        record.info["used"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def _try(raw: Any, record: Any, _proxy: object) -> None:
        # The server may have gone meanwhile, and nobody who only wants to look should have to
        # hear of it. For a single statement the trial would cost as much as the statement:
        # there a connection that was in use just now is trusted.
        max_wait = UNUSED if getattr(pinging, "is_off", False) else 0.0
        if time.monotonic() - record.info.get("used", math.inf) >= max_wait:
            try:
                engine.dialect.do_ping(raw)
            except Exception as gone:
                raise DisconnectionError("the connection is gone") from gone

    return engine

"""Connections to a SQLite file."""

from __future__ import annotations

import sqlite3
import time
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.pool import StaticPool

_BUSY_TIMEOUT = 30.0  #: seconds that a connection waits for the write lock


def is_in_memory(url: str) -> bool:
    return make_url(url).database in (None, "", ":memory:")


def sqlite_engine(url: str) -> Engine:
    options: dict[str, Any] = {
        "connect_args": {"check_same_thread": False, "timeout": _BUSY_TIMEOUT}
    }
    if is_in_memory(url):
        options["poolclass"] = StaticPool
    engine = create_engine(url, **options)

    @event.listens_for(engine, "connect")
    def _prepare(raw: Any, _record: object) -> None:
        raw.isolation_level = None  # transactions begin below
        cursor = raw.cursor()
        _write_ahead(cursor)
        # A checkpoint at 16 MB instead of 4: consecutive steps change the same pages, and a
        # checkpoint copies each page once.
        for pragma in ("synchronous = FULL", "temp_store = MEMORY", "wal_autocheckpoint = 4000"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # IMMEDIATE: a transaction that reads first and writes later would fail when another has
        # written in between, so one that may write takes the write lock at its start.
        writes = connection.get_execution_options().get("flowengine_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _write_ahead(cursor: Any) -> None:
    """Switch to the write-ahead log.

    The first to open a new file changes its journal mode, which needs an exclusive lock. SQLite's
    busy timeout does not apply to that lock, so wait for it here.
    """
    deadline = time.monotonic() + _BUSY_TIMEOUT
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as problem:
            if "locked" not in str(problem) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)

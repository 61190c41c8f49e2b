"""A SQLite database: one writer at a time, in this process and among processes."""

from __future__ import annotations

import itertools
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import PoolProxiedConnection, StaticPool

from flowengine.errors import StoreError
from flowengine.private_files import private_opener
from flowengine.store.backend import Parameters, sqlite_text
from flowengine.store.connection_pool import ConnectionPool
from flowengine.store.database import Clock, Database
from flowengine.store.session import SqlSession
from flowengine.store.sqlite import dialect
from flowengine.store.sqlite.fork_gate import fork_gate

_INSTRUCTIONS = 10_000  #: of SQLite's machine between two checks of a time limit
_BUSY_TIMEOUT = 30.0  #: seconds that a connection waits for the write lock
_KEPT = 4  # connections for queries that are kept between two uses, at most: the pool has five
_creation = threading.Lock()


class SqliteDatabase(Database):
    """Transactions that may write are BEGIN IMMEDIATE.

    The threads of this process queue for the write lock themselves: SQLite makes waiters sleep
    and poll.
    """

    dialect = dialect
    has_server = False

    def __init__(self, url: str, *, schema: str = "", clock: Clock | None = None) -> None:
        super().__init__(url, schema=schema, clock=clock)
        if schema:
            raise StoreError(
                f"SQLite has no schemas: FLOWENGINE_SCHEMA={schema!r} needs a PostgreSQL in "
                "FLOWENGINE_DATABASE_URL; leave it empty, and give each its own file"
            )
        is_in_memory = self.url.database in (None, "", ":memory:")
        self.engine = _engine(url, is_in_memory)
        self._writer = threading.Lock()
        #: The connection of `autocommit` between two uses: checking one out of the pool takes
        #: longer than some statements. Belongs to the thread that has the lock.
        self._kept: PoolProxiedConnection | None = None
        self._kept_readers: list[PoolProxiedConnection] = []  #: those of `autocommit_read`
        self._disconnects = 0  #: a connection that was checked out before the last one is not kept
        self._generations = itertools.count()
        # A database in memory is its one connection; a fork copies it with all its rows.
        if not is_in_memory:
            self.file = Path(self.url.database or "")
            fork_gate.guard(self)

    def disconnect(self) -> None:
        """Close the connections that no thread uses; those in use are closed after their use."""
        self._disconnects += 1  # first: a thread that keeps its connection looks at it again
        if self._writer.acquire(blocking=False):  # else a thread uses the kept one
            try:
                kept, self._kept = self._kept, None
                if kept is not None:
                    kept.close()
            finally:
                self._writer.release()
        self.close_readers()
        self.engine.dispose()

    def close_readers(self) -> None:
        """Close the connections of `autocommit_read` that no thread uses."""
        with suppress(IndexError):  # emptied
            while True:
                self._kept_readers.pop().close()

    def close(self) -> None:
        self.disconnect()

    def copy_to(self, other: SqliteDatabase) -> None:
        """Replace everything in another database by a copy of this one; both are in memory."""
        with (
            self._writer,
            other._writer,
            closing(self.engine.raw_connection()) as source,
            closing(other.engine.raw_connection()) as target,
        ):
            driver: Any = source.driver_connection
            driver.backup(target.driver_connection)

    @property
    def generation(self) -> int:
        # A file may be replaced at any time, and a check costs no round trip.
        return next(self._generations)

    @contextmanager
    def _turn(self, *, writes: bool) -> Iterator[None]:
        is_in_memory = self.file is None
        gate = nullcontext() if is_in_memory else fork_gate.passing()
        # A database in memory is one connection, which threads must not share.
        with gate, self._writer if writes or is_in_memory else nullcontext():
            yield

    @contextmanager
    def _time_limit(self, connection: Connection, seconds: float) -> Iterator[None]:
        driver: Any = connection.connection.driver_connection
        ends = time.monotonic() + seconds
        driver.set_progress_handler(lambda: time.monotonic() > ends, _INSTRUCTIONS)
        try:
            yield
        finally:
            driver.set_progress_handler(None, 0)

    def autocommit(self) -> AbstractContextManager[SqlSession]:
        return _Autocommit(self)

    def autocommit_read(self) -> AbstractContextManager[SqlSession]:
        return self.autocommit() if self.file is None else _AutocommitRead(self)

    @contextmanager
    def optimistic(self) -> Iterator[SqlSession]:
        with self.autocommit() as session, session.executor.atomic():
            yield session


class _Autocommit:
    """Check out a bare connection, as the only writer of this process.

    Errors of the driver are wrapped as SQLAlchemy does. A class, not a generator: this is entered
    for every step.
    """

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    def __enter__(self) -> SqlSession:
        database = self._database
        if database.file is not None:
            fork_gate.enter()
        try:
            database._writer.acquire()
        except BaseException:  # Ctrl-C while it waits
            self._leave_gate()
            raise
        self._disconnects = database._disconnects
        try:
            kept, database._kept = database._kept, None
            self._proxy = kept or database.engine.raw_connection()
        except BaseException as problem:
            self._leave()
            _raise_translated(database, problem)
            raise
        return database.session(SqliteExecutor(self._proxy.driver_connection))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        database = self._database
        is_connected = self._disconnects == database._disconnects
        try:
            if problem is None and is_connected and database.file is not None:
                database._kept = self._proxy
            else:
                self._proxy.close()
        finally:
            self._leave()
        _raise_translated(database, problem)

    def _leave(self) -> None:
        self._database._writer.release()
        self._leave_gate()

    def _leave_gate(self) -> None:
        if self._database.file is not None:
            fork_gate.leave()


class _AutocommitRead:
    """Check out a bare connection to a file for queries: a reader waits for no writer."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    def __enter__(self) -> SqlSession:
        database = self._database
        fork_gate.enter()
        self._disconnects = database._disconnects
        try:
            try:
                self._proxy = database._kept_readers.pop()
            except IndexError:
                self._proxy = database.engine.raw_connection()
        except BaseException as problem:
            fork_gate.leave()
            _raise_translated(database, problem)
            raise
        return database.session(SqliteExecutor(self._proxy.driver_connection))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        database, kept = self._database, self._database._kept_readers
        try:
            if problem is None and self._disconnects == database._disconnects and len(kept) < _KEPT:
                kept.append(self._proxy)
                if self._disconnects != database._disconnects:
                    database.close_readers()
            else:
                self._proxy.close()
        finally:
            fork_gate.leave()
        _raise_translated(database, problem)


def _raise_translated(database: SqliteDatabase, problem: BaseException | None) -> None:
    """Raise an error of the driver as SQLAlchemy does."""
    if isinstance(problem, sqlite3.Error):
        with database.translated_errors():
            raise DBAPIError.instance(None, None, problem, sqlite3.Error) from problem


class SqliteExecutor:
    """Executes each statement in a transaction of its own, unless one is open."""

    channel = ""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def rows(self, text: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._driver.execute(
            sqlite_text(text), parameters
        ).fetchall()
        return found

    def many(self, text: str, rows: Sequence[Parameters]) -> None:
        self._driver.executemany(text, rows)

    def atomic(self) -> AbstractContextManager[object]:
        return nullcontext() if self._driver.in_transaction else self.transaction()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._driver.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._driver.execute("COMMIT")
        except BaseException:
            self._driver.rollback()
            raise


def _engine(url: str, is_in_memory: bool) -> Engine:
    engine = create_engine(
        url,
        connect_args={"check_same_thread": False, "timeout": _BUSY_TIMEOUT},
        poolclass=StaticPool if is_in_memory else ConnectionPool,
    )

    if not is_in_memory:

        @event.listens_for(engine, "do_connect")
        def _create_private(_dialect: object, _record: object, args: Any, _options: object) -> None:
            _create_file(args[0])

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


def _create_file(name: str) -> None:
    """Create the file for its owner alone; SQLite gives its log the mode of the database.

    Never open an existing file: closing it would release the locks that SQLite holds on it in this
    process. The lock keeps other threads from opening a connection before the new file is closed.
    """
    if name.startswith("file:"):
        return  # a URI, whose parameters may forbid to create it
    with _creation, suppress(OSError):  # SQLite reports a directory that is not there
        os.close(private_opener(name, os.O_CREAT | os.O_EXCL | os.O_RDWR))


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

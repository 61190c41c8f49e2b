"""The database: connections, transactions and the time.

One transaction per decision. On PostgreSQL it is READ COMMITTED: the run's row is locked
first and everything else read after, so that what was committed while we waited is seen.
On SQLite it is BEGIN IMMEDIATE: there is one writer at a time, and a process queues its
own threads for it, because SQLite itself makes waiters sleep and guess.
"""

from __future__ import annotations

import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from types import TracebackType
from typing import Any

from sqlalchemy import Connection, make_url
from sqlalchemy.exc import DBAPIError

from flowengine.errors import DatabaseBusy, DatabaseReadOnly, StoreError
from flowengine.fork import ForkAware, notify_of_forks
from flowengine.store.executors import (
    CLOCK,
    Executor,
    PipelineExecutor,
    PostgresExecutor,
    SqlalchemyExecutor,
    SqliteExecutor,
    as_sqlalchemy,
)
from flowengine.store.fork_safety import fork_gate
from flowengine.store.pools import PREPARED, UNUSED, postgres_engine, sqlite_engine

_READ_ONLY_TRANSACTION = "25006"  #: PostgreSQL's code for a write where none is allowed
_CLOCK_TRUST = 5.0  #: seconds that we count on from a server's time
Clock = Callable[[], int]  #: milliseconds since the epoch


def system_clock() -> int:
    return time.time_ns() // 1_000_000


class Database(ForkAware):
    """An opened database."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self.url = make_url(url)
        self._clock = clock
        self._asked = (-math.inf, 0)  #: when we asked for the time, and what we were told
        self._writer = threading.Lock()
        self._pinging = threading.local()
        self._kept = threading.local()
        backend = self.url.get_backend_name()
        if backend == "sqlite":
            self.engine = sqlite_engine(url)
        elif backend == "postgresql":
            self.engine = postgres_engine(url, self._pinging)
        else:
            raise StoreError(
                f"flowengine stores runs in sqlite or postgresql, not in {backend!r}: "
                "see FLOWENGINE_DATABASE_URL"
            )
        self.is_sqlite = backend == "sqlite"
        self.is_in_memory = self.is_sqlite and self.url.database in (None, "", ":memory:")
        # A database in memory is its one connection; a fork copies it with all it holds.
        self._is_file = self.is_sqlite and not self.is_in_memory
        if self._is_file:
            fork_gate.guard(self.engine)
        elif not self.is_sqlite:
            notify_of_forks(self)

    @property
    def name(self) -> str:
        """The address as one may show it: without a password."""
        return self.url.render_as_string(hide_password=True)

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction that may write; committed at the end, rolled back on an error."""
        with self._passing(), self._alone(), self._explained(), self.engine.connect() as connection:
            connection = connection.execution_options(flowengine_write=True)
            with connection.begin():
                yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One transaction that only reads."""
        # An in-memory database is one connection, which threads must take in turn.
        alone = self._writer if self.is_in_memory else nullcontext()
        with (
            self._passing(),
            alone,
            self._explained(),
            self.engine.connect() as connection,
            connection.begin(),
        ):
            yield connection

    def inside(self, connection: Connection) -> Executor:
        """Execute texts inside a transaction of ours."""
        return SqlalchemyExecutor(connection) if self.is_sqlite else PipelineExecutor(connection)

    def direct(self) -> AbstractContextManager[Executor]:
        """The driver's own connection, for statements that are made for every step.

        On PostgreSQL every statement commits by itself. On SQLite all of them are one
        transaction that may write.
        """
        return self._in_turn() if self.is_sqlite else _OneByOne(self)

    @contextmanager
    def keep_connection(self) -> Iterator[None]:
        """Let this thread keep its connection from one statement to the next.

        To fetch one from the pool and bring it back takes longer than some statements.
        """
        self._kept.is_on = not self.is_sqlite
        try:
            yield
        finally:
            self._kept.is_on = False
            self.return_connection()

    def return_connection(self) -> None:
        """Let this thread keep its connection no longer, until it needs one again."""
        proxy, self._kept.proxy = getattr(self._kept, "proxy", None), None
        if proxy is not None and proxy.is_valid:
            proxy.close()

    @contextmanager
    def autocommit_read(self) -> Iterator[Executor]:
        """For a look that is taken again and again: on PostgreSQL without a transaction."""
        if self.is_sqlite:
            with self.read() as connection:
                yield SqlalchemyExecutor(connection)
        else:
            with _OneByOne(self) as executor:
                yield executor

    @contextmanager
    def _in_turn(self) -> Iterator[Executor]:
        with self._passing(), self._writer, self._explained():
            try:
                with closing(self.engine.raw_connection()) as proxy:
                    driver: Any = proxy.driver_connection
                    executor = SqliteExecutor(driver)
                    executor.rows("BEGIN IMMEDIATE")
                    try:
                        yield executor
                    except BaseException:
                        driver.rollback()
                        raise
                    executor.rows("COMMIT")
            except sqlite3.Error as problem:
                raise DBAPIError.instance(None, None, problem, sqlite3.Error) from problem

    def _passing(self) -> AbstractContextManager[None]:
        return fork_gate.passing() if self._is_file else nullcontext()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self.is_sqlite:
            with self._writer:
                yield
        else:
            yield

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as problem:
            text = str(problem.orig).lower()
            is_refused = getattr(problem.orig, "sqlstate", "") == _READ_ONLY_TRANSACTION
            if is_refused or "readonly database" in text:
                raise DatabaseReadOnly(self.name) from problem
            if "database is locked" in text:
                raise DatabaseBusy(self.name) from problem
            if "unable to open database file" in text:
                raise StoreError(
                    f"the database {self.name} cannot be opened: does its directory exist, and "
                    "may this user write there?"
                ) from problem
            if "file is not a database" in text:
                raise StoreError(
                    f"the file of {self.name} is not a database: name another one in "
                    "FLOWENGINE_DATABASE_URL"
                ) from problem
            raise

    def now(self, connection: Connection | None = None) -> int:
        """The time: the database's own where it has one, so that all workers agree.

        A server's clock is asked every few seconds, and counted on from there. What we count
        is late by as long as the answer took, never early: what we write as due now is due.
        """
        if self._clock is not None:
            return self._clock()
        if self.is_sqlite:
            return system_clock()
        asked, told = self._asked
        elapsed = time.monotonic() - asked
        if elapsed > _CLOCK_TRUST:
            with self.direct() as executor:
                ((told,),) = executor.rows(f"SELECT {CLOCK}")
            self._asked = asked, told = time.monotonic(), int(told)
            elapsed = 0.0
        return int(told + elapsed * 1000)

    @property
    def given_time(self) -> int | None:
        """The time to give to a statement; None: the server reads its own clock."""
        return None if self._clock is None and not self.is_sqlite else self.now()

    def after_fork_in_child(self) -> None:
        """Leave the connections to the parent: two processes must not share one."""
        self.engine.dispose(close=False)
        self._kept = threading.local()

    def close(self) -> None:
        self.engine.dispose()


class _OneByOne:
    """A connection to PostgreSQL, bare; what it raises is wrapped as SQLAlchemy does it.

    A class, not a generator: this is entered for every step.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def __enter__(self) -> Executor:
        kept = self._database._kept
        proxy = getattr(kept, "proxy", None)
        if proxy is not None and time.monotonic() - kept.used < UNUSED:
            self._proxy = proxy
            return self._executor()
        self._database.return_connection()
        pinging = self._database._pinging
        # One that was kept unused came back to the pool just now, and looks fresh there.
        pinging.is_off = proxy is None
        error = self._database.engine.dialect.loaded_dbapi.Error
        try:
            self._proxy = self._database.engine.raw_connection()
        except error as problem:
            with self._database._explained():
                raise DBAPIError.instance(None, None, problem, error) from problem
        finally:
            pinging.is_off = False
        return self._executor()

    def _executor(self) -> Executor:
        prepared = None
        # A worker that waits for the server is killed if need be. Others must be able to stop
        # waiting when somebody presses Ctrl-C, which the driver sees to and libpq does not.
        if getattr(self._database._kept, "is_on", False):
            prepared = self._proxy.info.setdefault(PREPARED, {})
        return PostgresExecutor(self._proxy.driver_connection, prepared)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if problem is not None:
                self._explain(problem)
        finally:
            kept = self._database._kept
            if problem is None and getattr(kept, "is_on", False):
                kept.proxy, kept.used = self._proxy, time.monotonic()
            else:
                kept.proxy = None
                if self._proxy.is_valid:
                    self._proxy.close()

    def _explain(self, problem: BaseException) -> None:
        dialect = self._database.engine.dialect
        if not isinstance(problem, dialect.loaded_dbapi.Error):
            return
        explained = as_sqlalchemy(dialect, problem, self._proxy.driver_connection)
        if explained.connection_invalidated:
            self._proxy.invalidate(problem)
            self._database.engine.dispose()  # where one is gone the others are too
        with self._database._explained():
            raise explained from problem

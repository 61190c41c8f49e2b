"""A SQLite database: one writer at a time, in this process and among processes."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from flowengine.store.database import Clock, Database
from flowengine.store.executors import Executor, SqlalchemyExecutor
from flowengine.store.session import SqlSession
from flowengine.store.sqlite import dialect
from flowengine.store.sqlite.executor import SqliteExecutor
from flowengine.store.sqlite.fork_gate import fork_gate
from flowengine.store.sqlite.pool import is_in_memory, sqlite_engine


class SqliteDatabase(Database):
    """Transactions that may write are BEGIN IMMEDIATE.

    The threads of this process queue for the write lock themselves: SQLite makes waiters sleep
    and poll.
    """

    dialect = dialect
    has_server = False

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        super().__init__(url, clock=clock)
        self.engine = sqlite_engine(url)
        self._writer = threading.Lock()
        self._generations = itertools.count()
        # A database in memory is its one connection; a fork copies it with all its rows.
        if not is_in_memory(url):
            self.file = Path(self.url.database or "")
            fork_gate.guard(self.engine)

    @property
    def generation(self) -> int:
        # A file may be replaced at any time, and a check costs no round trip.
        return next(self._generations)

    def _executor(self, connection: Connection) -> Executor:
        return SqlalchemyExecutor(connection)

    @contextmanager
    def _turn(self, *, writes: bool) -> Iterator[None]:
        with ExitStack() as stack:
            if self.file is not None:
                stack.enter_context(fork_gate.passing())
            # A database in memory is one connection, which threads must not share.
            if writes or self.file is None:
                stack.enter_context(self._writer)
            yield

    @contextmanager
    def autocommit(self) -> Iterator[SqlSession]:
        with self._driver() as driver:
            yield self.session(SqliteExecutor(driver))

    @contextmanager
    def optimistic(self) -> Iterator[SqlSession]:
        with self._driver() as driver:
            executor = SqliteExecutor(driver)
            with executor.transaction():
                yield self.session(executor)

    @contextmanager
    def _driver(self) -> Iterator[Any]:
        """Yield the driver's connection, for the statements of every step."""
        with self._turn(writes=True), self.translated_errors():
            try:
                with closing(self.engine.raw_connection()) as proxy:
                    yield proxy.driver_connection
            except sqlite3.Error as problem:
                raise DBAPIError.instance(None, None, problem, sqlite3.Error) from problem

    def autocommit_read(self) -> AbstractContextManager[SqlSession]:
        return self.read()

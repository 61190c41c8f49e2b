"""A PostgreSQL database. Transactions are READ COMMITTED: the run's row is locked first and
everything else read after it, so commits made while waiting for the lock are seen."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import TracebackType
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import DBAPIError, DisconnectionError

from flowengine.fork import at_fork
from flowengine.store.backend import Executor
from flowengine.store.connection_pool import ConnectionPool
from flowengine.store.database import Clock, Database, missing_driver
from flowengine.store.postgres import dialect
from flowengine.store.postgres.channels import CHANNEL, FEED, task_channel
from flowengine.store.postgres.executors import PipelineExecutor, PostgresExecutor, as_sqlalchemy
from flowengine.store.postgres.listener import Listener
from flowengine.store.postgres.session_lock import SessionLock
from flowengine.store.session import SqlSession

_IDLE_LIMIT = 30.0  #: seconds that a transaction may be idle
_PING_AFTER = 1.0  #: seconds after which an unused connection is pinged before it is used
#: Key in a connection's info: the statements prepared on it, by text.
_PREPARED = "flowengine_prepared"
_SET_PATH = "SELECT set_config('search_path', %s, true)"  #: until the transaction ends
_CLOCK_TRUST = 5.0  #: seconds for which a reading of the server's clock is extrapolated


class PostgresDatabase(Database):
    """A server, shared by many processes."""

    dialect = dialect
    has_server = True

    def __init__(self, url: str, *, schema: str = "", clock: Clock | None = None) -> None:
        super().__init__(url, schema=schema, clock=clock)
        # All schemas of a database share its channels.
        self._channel = f"{CHANNEL}_{self.scope}" if self.scope else CHANNEL
        self._task_channel = task_channel(self._channel)
        self._clock_reading = (-math.inf, 0)  #: monotonic time, and the server's time then
        self._pinging = threading.local()
        self._kept = threading.local()
        self._locks: list[SessionLock] = []
        self.engine = _engine(url, schema, self._pinging)
        #: A restore ends all connections, so it is noticed with the first that was lost.
        self._generation = 0
        event.listen(self.engine, "invalidate", self._connection_lost)
        at_fork(in_child=self._abandon_connections)

    def _abandon_connections(self) -> None:
        """Leave the connections to the parent process: two processes must not share one."""
        self.engine.dispose(close=False)
        self._kept = threading.local()

    def _connection_lost(self, *_event: object) -> None:
        self._generation += 1

    @property
    def generation(self) -> int:
        return self._generation

    def _executor(self, connection: Connection) -> Executor:
        return PipelineExecutor(connection, self._channel)

    @contextmanager
    def within(self, executor: Executor, errors: type[Exception]) -> Iterator[SqlSession]:
        with super().within(executor, errors) as session:
            if not self.schema:
                yield session
                return
            # The connection is the caller's, and has the search path of the caller.
            path = session.rows("SELECT current_setting('search_path')")[0][0]
            session.rows(_SET_PATH, (self.schema,))
            try:
                yield session
            finally:
                with suppress(errors):  # failed already: a rollback restores the path
                    session.rows(_SET_PATH, (path,))

    def autocommit(self) -> AbstractContextManager[SqlSession]:
        return _Autocommit(self)

    autocommit_read = optimistic = autocommit

    def listen(self, on_end: Callable[[str], object], on_connect: Callable[[], object]) -> Listener:
        return Listener(self.engine, self._channel, on_end, on_connect)

    def listen_for_events(
        self, on_commit: Callable[[str], object], on_connect: Callable[[], object]
    ) -> Listener:
        return Listener(self.engine, self._channel + FEED, on_commit, on_connect)

    def listen_for_tasks(
        self, on_due: Callable[[str], object], on_connect: Callable[[], object]
    ) -> Listener:
        return Listener(self.engine, self._task_channel, on_due, on_connect)

    def notify_pollers(self, text: str) -> None:
        with self.autocommit() as session:
            values = {"channel": self._task_channel, "text": text}
            session.rows("SELECT pg_notify(%(channel)s, %(text)s)", values)

    def server_lock(self) -> SessionLock:
        self._locks.append(SessionLock(self.engine, self.schema, self._clock))
        return self._locks[-1]

    def close(self) -> None:
        for lock in self._locks:
            lock.release()
        super().close()

    # --- connections ---

    @contextmanager
    def keep_connection(self) -> Iterator[None]:
        # Checking a connection out of the pool takes longer than some statements.
        self._kept.is_on = True
        try:
            yield
        finally:
            self._kept.is_on = False
            self.return_connection()

    def return_connection(self) -> None:
        proxy, self._kept.proxy = getattr(self._kept, "proxy", None), None
        self._await_sent()
        if proxy is not None and proxy.is_valid:
            if proxy.driver_connection.closed:  # found by the wait: no other thread may get it
                proxy.invalidate()
            else:
                proxy.close()

    def _await_sent(self) -> None:
        """Wait for the statement that was sent on this thread's connection."""
        sent, self._kept.sent = getattr(self._kept, "sent", None), None
        if sent is not None:
            sent.wait()

    # --- time ---

    def now(self) -> int:
        if (now := self._known_time()) is not None:
            return now
        with self.autocommit() as session:
            return self.read_clock(session)

    @contextmanager
    def _time_limit(self, connection: Connection, seconds: float) -> Iterator[None]:
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = {math.ceil(seconds * 1000)}")
        yield

    def read_clock(self, session: SqlSession) -> int:
        """Return the server's time, from an earlier reading or read on this connection.

        The result is late by the duration of the query, never early: a task that is written as
        due now is due.
        """
        if (known := self._known_time()) is not None:
            return known
        ((now,),) = session.rows(f"SELECT {dialect.CLOCK}")
        self._clock_reading = (time.monotonic(), now)
        return int(now)

    def _known_time(self) -> int | None:
        if self._clock is not None:
            return self._clock()
        read_at, reading = self._clock_reading
        elapsed = time.monotonic() - read_at
        return int(reading + elapsed * 1000) if elapsed <= _CLOCK_TRUST else None

    @property
    def statement_time(self) -> int | None:
        return None if self._clock is None else self._clock()


class _Autocommit:
    """Check out a bare connection, or use the one that the thread keeps.

    Errors of the driver are wrapped as SQLAlchemy does. A class, not a generator: this is entered
    for every step.
    """

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database

    def __enter__(self) -> SqlSession:
        kept = self._database._kept
        proxy = getattr(kept, "proxy", None)
        if proxy is not None and time.monotonic() - kept.used < _PING_AFTER:
            self._proxy = proxy
            self._database._await_sent()
            return self._session()
        self._database.return_connection()
        pinging = self._database._pinging
        # A kept connection that was not used lately has just returned to the pool, where it looks
        # recently used: ping it.
        pinging.is_off = proxy is None
        error = self._database.engine.dialect.loaded_dbapi.Error
        try:
            self._proxy = self._database.engine.raw_connection()
        except error as problem:
            with self._database.translated_errors():
                raise DBAPIError.instance(None, None, problem, error) from problem
        finally:
            pinging.is_off = False
        return self._session()

    def _session(self) -> SqlSession:
        prepared = None
        # Prepared statements go through libpq, whose wait Ctrl-C does not interrupt. Only worker
        # threads, which keep their connection, use them.
        if getattr(self._database._kept, "is_on", False):
            prepared = self._proxy.info.setdefault(_PREPARED, {})
        database = self._database
        driver = self._proxy.driver_connection
        self._executor = PostgresExecutor(driver, database._channel, prepared)
        return database.session(self._executor)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if problem is not None:
                self._translate(problem)
        finally:
            kept = self._database._kept
            if problem is None and getattr(kept, "is_on", False):
                kept.proxy, kept.used = self._proxy, time.monotonic()
                kept.sent = self._executor.sent
            else:
                if self._executor.sent is not None:
                    self._executor.sent.wait()
                kept.proxy = None
                if self._proxy.is_valid:
                    self._proxy.close()

    def _translate(self, problem: BaseException) -> None:
        dialect = self._database.engine.dialect
        if not isinstance(problem, dialect.loaded_dbapi.Error):
            return
        translated = as_sqlalchemy(dialect, problem, self._proxy.driver_connection)
        if translated.connection_invalidated:
            self._proxy.invalidate(problem)
            self._database.engine.dispose()  # the server restarted: the others are stale, too
        with self._database.translated_errors():
            raise translated from problem


def _engine(url: str, schema: str, pinging: threading.local) -> Engine:
    parsed = make_url(url)
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    try:
        # Without a reset: every transaction that begins here also ends here.
        engine = create_engine(
            parsed,
            poolclass=ConnectionPool,
            pool_size=16,
            max_overflow=16,
            pool_reset_on_return=None,
            use_native_hstore=False,  # unused, and each connection would ask for the type
        )
    except ModuleNotFoundError as missing:
        raise missing_driver(missing) from missing

    @event.listens_for(engine, "connect")
    def _prepare(raw: Any, _record: object) -> None:
        raw.autocommit = True  # transactions begin below
        if schema:
            # Nothing else in the path: a table of another schema must not be found. By SET, not as
            # an option of the connection, which poolers drop.
            raw.execute(f'SET search_path = "{schema}"')
        # A process that is suspended inside a transaction keeps its locks, and so blocks a run or
        # the watchdog. The server ends such a transaction.
        raw.execute(f"SET idle_in_transaction_session_timeout = {_IDLE_LIMIT * 1000:.0f}")
        # Every repeated query has an index. A generic plan that was made while the tables were
        # tiny would scan them for ever.
        raw.execute("SET enable_seqscan = off; SET enable_hashjoin = off")
        raw.execute("SET enable_mergejoin = off; SET plan_cache_mode = force_generic_plan")
        # An empty table that was never analyzed counts as ten pages of rows as wide as its columns
        # allow, which is few rows: reading them all looks as cheap as looking some up by key. With
        # this price of a row, lookups win from an estimate of three rows on.
        raw.execute("SET cpu_tuple_cost = 0.2")
        # Compiling a statement with a wrong estimate takes a tenth of a second.
        raw.execute("SET jit = off")
        raw.prepare_threshold = 1

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    @event.listens_for(engine, "rollback")
    def _forget_prepared(connection: Connection) -> None:
        # psycopg sends DEALLOCATE ALL after a ROLLBACK.
        if not connection.invalidated:
            connection.info.pop(_PREPARED, None)

    @event.listens_for(engine, "checkin")
    def _used(_raw: Any, record: Any) -> None:
        record.info["used"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def _ping(raw: Any, record: Any, _proxy: object) -> None:
        # The server may have restarted since the last use; a reader should not see an error for
        # that. For a single statement a ping costs as much as the statement, so a connection that
        # was used within the last second is trusted.
        trusted = _PING_AFTER if getattr(pinging, "is_off", False) else 0.0
        if time.monotonic() - record.info.get("used", math.inf) >= trusted:
            try:
                engine.dialect.do_ping(raw)
            except Exception as gone:
                raise DisconnectionError("the connection is gone") from gone

    return engine

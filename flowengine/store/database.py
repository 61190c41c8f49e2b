"""A database: its connections, transactions, clock and errors.

Code that opens a database names this class. `engine`, `worker` and the layers above them use it as
a `Store` (`protocol`); PostgreSQL and SQLite have a folder each.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from flowengine.errors import DatabaseBusy, DatabaseReadOnly, InvalidSetting, StoreError
from flowengine.printable import masked_url
from flowengine.store.backend import Dialect, Executor, SqlalchemyExecutor
from flowengine.store.commits import OutboxRule, PollerNotes
from flowengine.store.database_url import parsed_url
from flowengine.store.protocol import CompletionListener, ServerLock
from flowengine.store.session import SqlSession

_READ_ONLY_TRANSACTION = "25006"  #: PostgreSQL's SQLSTATE for a refused write
#: As it is in SQL without quotes, and short enough to be a part of other names.
_SCHEMA = re.compile(r"(?!pg_|information_schema$)[a-z_][a-z0-9_]{0,46}")
Clock = Callable[[], int]  #: milliseconds since the epoch


def system_clock() -> int:
    return time.time_ns() // 1_000_000


class Database:
    """An open database. `Database(url)` is a PostgresDatabase or a SqliteDatabase.

    The same call has the same transaction semantics on each.
    """

    dialect: Dialect
    engine: Engine
    #: A server is shared by processes of several versions, and a statement is a round trip.
    has_server: bool
    file: Path | None = None  #: of a SQLite database that is not in memory
    outbox_rule: OutboxRule | None = None  #: the outcomes that commits have delivered
    poller_notes: PollerNotes | None = None  #: the pollers that commits notify

    def __new__(cls, url: str, **_options: Any) -> Self:
        return super().__new__(_backend(url) if cls is Database else cls)  # type: ignore[return-value]

    def __init__(self, url: str, *, schema: str = "", clock: Clock | None = None) -> None:
        self.url, self.schema, self._clock = parsed_url(url), schema, clock
        if schema and not _SCHEMA.fullmatch(schema):
            expected = (
                "the name of a schema: lower-case letters, digits and underscores, 47 at most, "
                "without pg_ at the beginning"
            )
            raise InvalidSetting("FLOWENGINE_SCHEMA", schema, expected)

    @property
    def generation(self) -> int:
        """Changes when committed rows may be gone: a backup may have been restored meanwhile."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The URL without its password, and the schema if it is not the default one."""
        url = masked_url(self.url.render_as_string(hide_password=True))
        return f"{url} (schema {self.schema})" if self.schema else url

    @property
    def scope(self) -> str:
        """The schema, in names that all schemas of a database share; empty for the default one."""
        return "" if self.schema == "public" else self.schema

    # --- transactions ---

    _channel = ""  #: of NOTIFY, on PostgreSQL

    @contextmanager
    def write(self) -> Iterator[SqlSession]:
        """One transaction that may write; committed at the end, rolled back on an error."""
        with self._turn(writes=True), self.translated_errors(), self.engine.connect() as plain:
            connection = plain.execution_options(flowengine_write=True)
            with connection.begin():
                yield self.session(self._executor(connection), connection)

    @contextmanager
    def read(self) -> Iterator[SqlSession]:
        """One transaction that only reads."""
        with (
            self._turn(writes=False),
            self.translated_errors(),
            self.engine.connect() as connection,
            connection.begin(),
        ):
            yield self.session(self._executor(connection), connection)

    @contextmanager
    def limited_read(self, seconds: float) -> Iterator[SqlSession]:
        """One transaction that only reads, and whose statements end after that many seconds."""
        with self.read() as session, self._time_limit(session.connection, seconds):
            yield session

    def _time_limit(self, connection: Connection, seconds: float) -> AbstractContextManager[None]:
        raise NotImplementedError

    def autocommit(self) -> AbstractContextManager[SqlSession]:
        """Operations that commit by themselves, one after the other."""
        raise NotImplementedError

    def autocommit_read(self) -> AbstractContextManager[SqlSession]:
        """Read operations without a common snapshot: the cheapest query."""
        return self.read()

    def optimistic(self) -> AbstractContextManager[SqlSession]:
        """Reads that are followed by a guarded commit.

        The reads are not isolated from other writers: the guard refuses a commit that they made
        stale. SQLite has one writer at a time, so there the session holds the write lock.
        """
        raise NotImplementedError

    @contextmanager
    def within(self, executor: Executor, errors: type[Exception]) -> Iterator[SqlSession]:
        """A session inside the caller's own transaction, whose statements raise `errors`."""
        executor.channel = self._channel
        yield self.session(executor)

    def session(self, executor: Executor, connection: Connection | None = None) -> SqlSession:
        return SqlSession(self, executor, connection)

    def _executor(self, connection: Connection) -> Executor:
        return SqlalchemyExecutor(connection)

    def _turn(self, *, writes: bool) -> AbstractContextManager[object]:
        """Wait for the other threads of this process where they must not overlap."""
        return nullcontext()

    # --- connections ---

    def keep_connection(self) -> AbstractContextManager[None]:
        """Let this thread keep its connection between statements."""
        return nullcontext()

    def return_connection(self) -> None:
        """Return this thread's connection to the pool until it needs one again."""
        return

    def listen(
        self, on_end: Callable[[str], object], on_connect: Callable[[], object]
    ) -> CompletionListener | None:
        """Subscribe to the ends of runs; None if the database cannot notify.

        `on_connect` is called after each connection: notifications before it are lost.
        """
        return None

    def listen_for_events(
        self, on_commit: Callable[[str], object], on_connect: Callable[[], object]
    ) -> CompletionListener | None:
        """Subscribe to commits that the feed is to have; None if the database cannot notify."""
        return None

    def listen_for_tasks(
        self, on_due: Callable[[str], object], on_connect: Callable[[], object]
    ) -> CompletionListener | None:
        """Subscribe to the texts of `notify_pollers`; None if the database cannot notify."""
        return None

    def notify_pollers(self, text: str) -> None:
        """Send a text to all pollers that listen; does nothing if the database cannot notify."""

    def server_lock(self) -> ServerLock | None:
        """Return a lock for the server of this process; None if the database has no sessions."""
        return None

    def close(self) -> None:
        self.engine.dispose()

    # --- time ---

    def now(self) -> int:
        """Return the time in milliseconds; a server's own clock, so that all workers agree.

        Inside a transaction use the session's `now`, which needs no second connection.
        """
        return system_clock() if self._clock is None else self._clock()

    def read_clock(self, _session: SqlSession) -> int:
        return self.now()

    @property
    def statement_time(self) -> int | None:
        """The time to pass to a statement; None if the server reads its own clock."""
        return self.now()

    # --- errors ---

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
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


def missing_driver(missing: ModuleNotFoundError) -> StoreError:
    return StoreError(
        f"PostgreSQL needs the driver {missing.name!r}: pip install 'flowengine[postgres]'"
    )


def _backend(url: str) -> type[Database]:
    parsed = parsed_url(url)
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        from flowengine.store.sqlite.database import SqliteDatabase

        return SqliteDatabase
    shown = masked_url(url).partition("://")[2]
    cure = f"write postgresql://, as in FLOWENGINE_DATABASE_URL=postgresql://{shown}"
    if backend == "postgresql":
        driver = parsed.drivername.partition("+")[2]
        if driver not in ("", "psycopg"):
            raise StoreError(f"flowengine works with psycopg 3, not with {driver!r}: {cure}")
        try:
            from flowengine.store.postgres.database import PostgresDatabase
        except ModuleNotFoundError as missing:
            raise missing_driver(missing) from missing
        return PostgresDatabase
    if backend != "postgres":  # the name that many platforms give, and SQLAlchemy refuses
        cure = "see FLOWENGINE_DATABASE_URL"
    raise StoreError(f"flowengine stores runs in sqlite or postgresql, not in {backend!r}: {cure}")

"""A backend: the part of the store that each database implements by itself.

Its dialect is the SQL in which PostgreSQL and SQLite differ. Its executors bring SQL text to the
driver: SQLAlchemy costs more for a statement than a short statement itself, so the statements of
every step are text, executed on the driver's connection, or through SQLAlchemy inside one of its
transactions.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Connection

from flowengine.store.commit_rows import Ending, StoredLog
from flowengine.store.commits import CommitPlan

Parameters = Sequence[Any] | Mapping[str, Any]


class Executor(Protocol):
    """Executes SQL text. Parameters are %s or %(name)s for both databases."""

    channel: str  #: of NOTIFY, on PostgreSQL

    def rows(self, text: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]: ...

    def many(self, text: str, rows: Sequence[Parameters]) -> None:
        """Execute a text of SQLite once for each row."""

    def atomic(self) -> AbstractContextManager[object]:
        """Make the statements inside one transaction, unless they are in one already."""


class HeldActivation(NamedTuple):
    """The task of an activation that records calls, under the lease that guards the record."""

    run_id: str
    task_id: str
    lease: int


class SqlalchemyExecutor:
    """Executes inside a transaction of SQLAlchemy, ours or the caller's."""

    def __init__(self, connection: Connection, channel: str = "") -> None:
        self._connection, self.channel = connection, channel
        self._text = statement_form(connection.dialect.name)

    def rows(self, text: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        values = parameters if isinstance(parameters, Mapping) else tuple(parameters)
        result = self._connection.exec_driver_sql(self._text(text), values or None)
        return [tuple(row) for row in result] if result.returns_rows else []

    def many(self, text: str, rows: Sequence[Parameters]) -> None:
        self._connection.exec_driver_sql(text, list(rows))

    def atomic(self) -> AbstractContextManager[object]:
        return nullcontext()


@functools.lru_cache(maxsize=1_000)
def sqlite_text(text: str) -> str:
    """Return a text with the parameter marks of SQLite."""
    return re.sub(r"%(?:\((\w+)\))?s", lambda mark: f":{mark[1]}" if mark[1] else "?", text)


def statement_form(database: str) -> Callable[[str], str]:
    """Return the function that writes a text for the driver of `sqlite` or `postgresql`."""
    return sqlite_text if database == "sqlite" else str


class EncodedReport(NamedTuple):
    """A report as it is stored."""

    task_id: str
    lease: int
    ending: Ending
    payloads: dict[str, str]
    logs: Sequence[StoredLog] = ()  #: the last lines of the try


class Dialect(Protocol):
    """Fragments and operations of one database; the modules `dialect` of the backends."""

    IDS: str  #: a table `w(value)` of a JSON array of ids
    PAIRS: str  #: a table `w` of a JSON array of objects with run_id and key
    PAIR_RUN: str
    PAIR_KEY: str
    TRIES: str  #: a table `w` of a JSON array of objects with task_id, lease and line
    TRY_TASK: str
    TRY_LEASE: str
    TRY_LINE: str
    LOCK_ROWS: str  #: a table `w` of a JSON array of objects with key and meta
    LOCK_KEY: str
    LOCK_META: str
    JOIN: str  #: joins `w`, which is read first, with a table that has an index
    LOCK: str
    SKIP_LOCKED: str
    SHARE_LOCK: str  #: keeps a row from being removed, and lets others do the same
    REPORTED_INDEX: str
    ROW_ID: str  #: the address of a row
    ROW_IDS: str  #: it is among those of the query that follows, up to ROW_END
    ROW_END: str
    SNAPSHOT: str  #: makes a transaction read one state of the database
    LOCK_REFERENCES: str  #: locks the references against writers, and does not wait
    CLAIM: str  #: claims the due tasks of a list; with {now} for the time
    CLAIM_THESE: str
    ANY_DUE_OF_LISTS: str
    CLOCK: str  #: the database's own clock in milliseconds
    PARK_WAITING: str

    def __hash__(self) -> int: ...

    def listed(self, values: Collection[str]) -> Any:
        """Return names as the parameter of a claim."""

    def try_lock(self, executor: Executor, name: str) -> bool:
        """Lock a name until the end of the transaction; False if another one has locked it."""

    def wait_for_lock(self, executor: Executor, name: str) -> None:
        """Lock a name until the end of the transaction, as soon as no other one has locked it."""

    def probe_lock(self, executor: Executor, key: int) -> tuple[str, bool]:
        """Return the incarnation of the database server, and whether a session lock is free."""

    def commit(self, executor: Executor, plan: CommitPlan, *, guarded: bool) -> set[str]:
        """Write a commit plan; return the runs whose part was written."""

    def insert_calls(
        self, executor: Executor, plan: CommitPlan, held: Sequence[HeldActivation]
    ) -> Callable[[], set[str]]:
        """Insert the steps of a plan, with their payloads: for each run whose activation is held.

        The result is called in this session or a later one of the thread: the runs that were held.
        """

    def stream_commits(
        self, executor: Executor
    ) -> AbstractContextManager[Callable[[CommitPlan], object]]:
        """Return a function that writes a commit; all are written at the end."""

    def record(
        self, executor: Executor, reports: Sequence[EncodedReport], now: int
    ) -> dict[str, int | None]: ...

    def add_logs(self, executor: Executor, rows: Sequence[StoredLog]) -> None:
        """Insert chunks that are not stored yet."""

    def release(
        self, executor: Executor, held: Sequence[tuple[str, int]], now: int, due: int | None = None
    ) -> list[tuple[Any, ...]]:
        """Release tasks, or park them until `due`.

        Returns the task list, id, state, queue and limits of each.
        """


@functools.cache
def in_dialect(template: str, dialect: Dialect) -> str:
    """Return a text with the fragments of a dialect in place of their names in braces."""
    return template.format_map(vars(dialect))

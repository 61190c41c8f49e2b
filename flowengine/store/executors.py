"""How the statement texts of the hot path reach the database.

SQLAlchemy costs more for a statement than a short statement itself. What is done for every
step is therefore written as text, and given to the driver: directly, or through SQLAlchemy
where a transaction of its is under way.
"""

from __future__ import annotations

import functools
import itertools
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

from sqlalchemy import Connection, Dialect
from sqlalchemy.exc import DBAPIError

#: A server's own clock, to the millisecond.
CLOCK = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"

log = logging.getLogger(__name__)

Given = Sequence[Any] | Mapping[str, Any]


class Executor(Protocol):
    """Executes texts in the dialect of one database.

    Parameters stand as %s in a text for PostgreSQL and as ? in one for SQLite; where a text
    differs there are two, and `is_sqlite` chooses. What writes returns something too.
    """

    is_sqlite: bool

    def rows(self, text: str, given: Given = ()) -> list[tuple[Any, ...]]: ...

    def many(self, text: str, given: Sequence[Given]) -> None: ...


class SqliteExecutor:
    """Executes on SQLite's own connection."""

    is_sqlite = True

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def rows(self, text: str, given: Given = ()) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._driver.execute(text, given).fetchall()
        return found

    def many(self, text: str, given: Sequence[Given]) -> None:
        self._driver.executemany(text, given)


class PostgresExecutor:
    """Executes on psycopg's own connection."""

    is_sqlite = False

    def __init__(self, driver: Any, prepared: dict[str, bytes] | None = None) -> None:
        """Use a connection; `prepared` are the names of the statements prepared on it."""
        from psycopg import RawCursor  # with SQLite alone the driver is not installed

        # It takes a text as the server does. Others read all of it each time to find the
        # places of parameters, and our texts are long.
        self._driver, self._prepared = driver, prepared
        self._cursor = RawCursor(driver)

    def rows(self, text: str, given: Given = ()) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._cursor.execute(*_placed(text, given)).fetchall()
        return found

    def fetch_text_column(self, text: str, parameters: Sequence[str | None]) -> list[str]:
        """Execute a statement with text parameters; return its first column, which is text.

        The statement goes through libpq, prepared: without psycopg's conversions and its waiting
        in Python a chain of steps takes a tenth less time.
        """
        prepared = self._prepared
        # libpq would cut a value off at a NUL; psycopg refuses it.
        if prepared is None or "\0" in "".join(filter(None, parameters)):
            return [row[0] for row in self.rows(text, parameters)]
        if text not in prepared and len(prepared) >= _MAX_PREPARED:
            return [row[0] for row in self.rows(text, parameters)]
        values = [None if value is None else value.encode() for value in parameters]
        try:
            result = self._execute_prepared(prepared, text, values)
        except _missing_statement() as missing:
            log.debug("prepare statements again: %s", missing)
            prepared.clear()
            result = self._execute_prepared(prepared, text, values)
        return [result.get_value(row, 0).decode() for row in range(result.ntuples)]

    def _execute_prepared(
        self, prepared: dict[str, bytes], text: str, values: Sequence[bytes | None]
    ) -> Any:
        connection = self._driver.pgconn
        if text not in prepared:
            # A name is used once: the server may still have a statement that we have forgotten.
            name = f"flowengine_{next(_statement_numbers)}".encode()
            _check(connection.prepare(name, _numbered(text)[0]))
            prepared[text] = name
        return _check(connection.exec_prepared(prepared[text], values))

    def many(self, text: str, given: Sequence[Given]) -> None:
        raise NotImplementedError("PostgreSQL is given many rows as JSON")


_MAX_PREPARED = 200  # per connection: each is a plan that the server keeps
_statement_numbers = itertools.count()


def _missing_statement() -> type[Exception]:
    from psycopg.errors import InvalidSqlStatementName

    return InvalidSqlStatementName


def _check(result: Any) -> Any:
    from psycopg.errors import error_from_result
    from psycopg.pq import ExecStatus

    if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
        raise error_from_result(result)
    return result


def _placed(text: str, given: Given) -> tuple[bytes, Sequence[Any]]:
    numbered, names = _numbered(text)
    return numbered, [given[name] for name in names] if isinstance(given, Mapping) else given


@functools.lru_cache(maxsize=1_000)
def _numbered(text: str) -> tuple[bytes, list[str]]:
    """Number the places of parameters; named ones are given in the order of these names."""
    names: list[str] = []

    def number(place: re.Match[str]) -> str:
        name = place[1] or str(len(names))
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    return re.sub(r"%(?:\((\w+)\))?s", number, text).encode(), names


class SqlalchemyExecutor:
    """Executes inside a transaction of SQLAlchemy's, ours or the user's."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.is_sqlite = connection.dialect.name == "sqlite"

    def rows(self, text: str, given: Given = ()) -> list[tuple[Any, ...]]:
        values = given if isinstance(given, Mapping) else tuple(given)
        found = self._connection.exec_driver_sql(text, values or None)
        return [tuple(row) for row in found] if found.returns_rows else []

    def many(self, text: str, given: Sequence[Given]) -> None:
        self._connection.exec_driver_sql(text, list(given))


class PipelineExecutor(PostgresExecutor):
    """Executes on psycopg's connection inside a transaction of SQLAlchemy's.

    Several texts may be on their way at once: the server works on one while we think about the
    next.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._error = connection.dialect.loaded_dbapi.Error
        super().__init__(connection.connection.driver_connection)

    def rows(self, text: str, given: Given = ()) -> list[tuple[Any, ...]]:
        with self._explained():
            return super().rows(text, given)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Inside, what is sent is not waited for; at the end all of it is done."""
        with self._explained(), self._driver.pipeline() if self._has_pipeline() else nullcontext():
            yield

    def send(self, text: str, given: Given) -> None:
        """Have a text executed that answers nothing; what is wrong with it may be raised later."""
        # With a cursor of its own: a second text on the same would not wait for the first answer.
        type(self._cursor)(self._driver).execute(*_placed(text, given))

    def _has_pipeline(self) -> bool:
        from psycopg import Pipeline

        return Pipeline.is_supported()  # not with a client library of before 2021

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except self._error as problem:
            explained = as_sqlalchemy(self._connection.dialect, problem, self._driver)
            if explained.connection_invalidated:
                self._connection.invalidate(problem)
            raise explained from problem


def as_sqlalchemy(dialect: Dialect, problem: Exception, driver: Any) -> DBAPIError:
    """What SQLAlchemy would raise for an error of the driver; it says if the connection is gone."""
    error = dialect.loaded_dbapi.Error
    is_gone = dialect.is_disconnect(problem, driver, None)  # type: ignore[arg-type]
    found = DBAPIError.instance(None, None, problem, error, connection_invalidated=is_gone)
    assert isinstance(found, DBAPIError)
    return found

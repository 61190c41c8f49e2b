"""Execute SQL text on the connection of psycopg."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from psycopg import Pipeline, RawCursor
from psycopg.errors import InvalidSqlStatementName, error_from_result
from psycopg.pq import ExecStatus
from sqlalchemy import Connection, Dialect
from sqlalchemy.exc import DBAPIError

from flowengine.log_filter import safe_logger
from flowengine.store.backend import Parameters

log = safe_logger(__name__)

_MAX_PREPARED = 200  # per connection: each is a plan that the server keeps
_SUCCESS = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)
_statement_numbers = itertools.count()


class SentStatement:
    """A statement with text parameters that the server executes while this process goes on."""

    def __init__(self, executor: PostgresExecutor, text: str, values: Sequence[str | None]) -> None:
        self._executor, self._text, self._values = executor, text, values
        self._column: list[str] = []
        self._error: Exception | None = None
        self._is_done = False

    def wait(self) -> None:
        """Wait for the end: only then can the connection execute another statement."""
        if self._is_done:
            return
        self._is_done = True
        try:
            self._column = self._executor.received(self._text, self._values)
        except Exception as problem:
            self._error = problem

    def column(self) -> list[str]:
        """Return the first column of the result, or raise the error of the statement."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._column


class PostgresExecutor:
    """Executes on psycopg's own connection; each statement commits by itself."""

    def __init__(self, driver: Any, channel: str, prepared: dict[str, bytes] | None = None) -> None:
        """Use a connection; `prepared` are the names of the statements prepared on it."""
        self._driver, self._prepared = driver, prepared
        self.channel = channel  #: of NOTIFY
        self.sent: SentStatement | None = None  #: the last one that was sent by `send_text`

    def rows(self, text: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        # RawCursor takes $1: other cursors parse the text each time, and our texts are long.
        return RawCursor(self._driver).execute(*_with_numbers(text, parameters)).fetchall()

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
        except InvalidSqlStatementName as missing:
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

    def send_text(self, text: str, parameters: Sequence[str | None]) -> SentStatement | None:
        """Send a statement that was executed before, and do not wait for it.

        None if it cannot be sent: `fetch_text_column` executes it.
        """
        prepared = self._prepared
        if prepared is None or text not in prepared or "\0" in "".join(filter(None, parameters)):
            return None
        values = [None if value is None else value.encode() for value in parameters]
        self._driver.pgconn.send_query_prepared(prepared[text], values)
        self.sent = SentStatement(self, text, parameters)
        return self.sent

    def received(self, text: str, parameters: Sequence[str | None]) -> list[str]:
        """Return the result of the statement that was sent."""
        connection, results = self._driver.pgconn, []
        while (result := connection.get_result()) is not None:
            results.append(result)
        try:
            (result,) = map(_check, results)
        except InvalidSqlStatementName:
            assert self._prepared is not None
            self._prepared.clear()
            return self.fetch_text_column(text, parameters)
        return [result.get_value(row, 0).decode() for row in range(result.ntuples)]

    def many(self, text: str, rows: Sequence[Parameters]) -> None:
        raise NotImplementedError("PostgreSQL takes many rows as JSON")

    def atomic(self) -> AbstractContextManager[object]:
        raise NotImplementedError("on PostgreSQL an operation is one statement")


class PipelineExecutor(PostgresExecutor):
    """Executes on psycopg's connection inside a transaction of SQLAlchemy.

    Statements can be pipelined: the server executes one while this process builds the next.
    """

    def __init__(self, connection: Connection, channel: str) -> None:
        self._connection = connection
        self._error = connection.dialect.loaded_dbapi.Error
        super().__init__(connection.connection.driver_connection, channel)

    def rows(self, text: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        with self._translated_errors():
            return super().rows(text, parameters)

    @contextmanager
    def pipeline(self) -> Iterator[None]:
        """Inside, `send` does not wait; at the end all statements are executed."""
        # A client library of before 2021 has no pipeline.
        pipeline = self._driver.pipeline() if Pipeline.is_supported() else nullcontext()
        with self._translated_errors(), pipeline:
            yield

    def send(self, text: str, parameters: Parameters) -> None:
        """Execute a statement without a result; its error may be raised later."""
        # A cursor of its own: a second statement on one cursor waits for the first result.
        RawCursor(self._driver).execute(*_with_numbers(text, parameters))

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except self._error as problem:
            translated = as_sqlalchemy(self._connection.dialect, problem, self._driver)
            if translated.connection_invalidated:
                self._connection.invalidate(problem)
            raise translated from problem


def as_sqlalchemy(dialect: Dialect, problem: Exception, driver: Any) -> DBAPIError:
    """Wrap an error of the driver as SQLAlchemy does; the wrapper marks a lost connection."""
    error = dialect.loaded_dbapi.Error
    is_lost = dialect.is_disconnect(problem, driver, None)  # type: ignore[arg-type]
    wrapped = DBAPIError.instance(None, None, problem, error, connection_invalidated=is_lost)
    assert isinstance(wrapped, DBAPIError)
    return wrapped


def _check(result: Any) -> Any:
    if result.status not in _SUCCESS:
        raise error_from_result(result)
    return result


def _with_numbers(text: str, values: Parameters) -> tuple[bytes, Sequence[Any]]:
    numbered, names = _numbered(text)
    return numbered, [values[name] for name in names] if isinstance(values, Mapping) else values


@functools.lru_cache(maxsize=1_000)
def _numbered(text: str) -> tuple[bytes, list[str]]:
    """Number the parameters as the server does; named ones in the order of these names."""
    names: list[str] = []

    def number(mark: re.Match[str]) -> str:
        name = mark[1] or str(len(names))
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    return re.sub(r"%(?:\((\w+)\))?s", number, text).encode(), names

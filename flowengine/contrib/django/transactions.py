"""Starts inside `transaction.atomic()` join the transaction.

If the runs are in the database of the transaction, a run is inserted by the connection of Django:
it exists if the transaction commits. Otherwise it is started by `transaction.on_commit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import Any

from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections, transaction
from sqlalchemy import URL, make_url

from flowengine.contrib.django.project import database_url, own_setting
from flowengine.engine import Engine
from flowengine.errors import AuthoringError
from flowengine.store.backend import Executor, Parameters, statement_form
from flowengine.store.database_url import is_same_database


class DjangoExecutor:
    """Executes by the driver's connection that Django has opened.

    The cursor of Django would keep the statements for its debug log, and expects its own marks of
    parameters in them.
    """

    channel = ""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._text = statement_form(connection.vendor)

    def rows(self, text: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        values = parameters if isinstance(parameters, Mapping) else tuple(parameters)
        with self._cursor() as cursor:
            cursor.execute(self._text(text), values)
            return list(cursor.fetchall()) if cursor.description else []

    def many(self, text: str, rows: Sequence[Parameters]) -> None:
        with self._cursor() as cursor:
            cursor.executemany(text, list(rows))

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        with self._connection.wrap_database_errors:
            self._connection.ensure_connection()
            with closing(self._connection.connection.cursor()) as cursor:
                yield cursor

    def atomic(self) -> AbstractContextManager[object]:
        return nullcontext()


class DjangoTransaction:
    """The transaction of a connection of Django."""

    errors = DatabaseError

    def __init__(self, connection: Any, *, has_runs: bool) -> None:
        self._connection = connection
        self.executor: Executor | None = DjangoExecutor(connection) if has_runs else None

    def after_commit(self, call: Callable[[], object]) -> None:
        transaction.on_commit(call, using=self._connection.alias)


def current_transaction(engine: Engine, given: object) -> DjangoTransaction | None:
    """Return the transaction of the given connection, or the one that this thread is in."""
    runs = connections[own_setting("DATABASE")]
    if given is not None:
        if not hasattr(given, "in_atomic_block"):
            raise AuthoringError(
                f"connection={given!r} is neither a connection of Django nor of SQLAlchemy"
            )
        if not given.in_atomic_block:
            raise AuthoringError(
                "the connection of Django is in no transaction: start inside transaction.atomic()"
            )
        return DjangoTransaction(given, has_runs=has_runs(given, engine.database.url))
    for connection in (runs, connections[DEFAULT_DB_ALIAS]):
        if connection.in_atomic_block:
            return DjangoTransaction(connection, has_runs=has_runs(connection, engine.database.url))
    return None


def has_runs(connection: Any, runs: URL) -> bool:
    """Whether a connection leads to the database in which an engine keeps its runs."""
    url = database_url(connection.alias)
    return bool(url) and is_same_database(make_url(url), runs)

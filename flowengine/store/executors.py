"""Executors: how the SQL text of the hot path reaches the driver.

SQLAlchemy costs more for a statement than a short statement itself. The statements of every step
are therefore text, executed on the driver's connection, or through SQLAlchemy inside one of its
transactions.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from sqlalchemy import Connection

Parameters = Sequence[Any] | Mapping[str, Any]


class Executor(Protocol):
    """Executes SQL text. Parameters are %s or %(name)s for both databases."""

    def rows(self, text: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]: ...

    def many(self, text: str, rows: Sequence[Parameters]) -> None:
        """Execute a text of SQLite once for each row."""

    def atomic(self) -> AbstractContextManager[object]:
        """Make the statements inside one transaction, unless they are in one already."""


class SqlalchemyExecutor:
    """Executes inside a transaction of SQLAlchemy, ours or the caller's."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._is_sqlite = connection.dialect.name == "sqlite"

    def rows(self, text: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        values = parameters if isinstance(parameters, Mapping) else tuple(parameters)
        text = sqlite_text(text) if self._is_sqlite else text
        result = self._connection.exec_driver_sql(text, values or None)
        return [tuple(row) for row in result] if result.returns_rows else []

    def many(self, text: str, rows: Sequence[Parameters]) -> None:
        self._connection.exec_driver_sql(text, list(rows))

    def atomic(self) -> AbstractContextManager[object]:
        return nullcontext()


@functools.lru_cache(maxsize=1_000)
def sqlite_text(text: str) -> str:
    """Return a text with the parameter marks of SQLite."""
    return re.sub(r"%(?:\((\w+)\))?s", lambda mark: f":{mark[1]}" if mark[1] else "?", text)

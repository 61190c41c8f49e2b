"""How the statement texts of the hot path reach the database.

SQLAlchemy costs more for a statement than a short statement itself. What is done for every
step is therefore written as text, and given to the driver: directly, or through SQLAlchemy
where a transaction of its is under way.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from sqlalchemy import Connection

#: A server's own clock, to the millisecond.
CLOCK = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"

Given = Sequence[Any] | Mapping[str, Any]


class Executor(Protocol):
    """Executes texts in the dialect of one database.

    Parameters stand as %s in a text for PostgreSQL and as ? in one for SQLite; where a text
    differs there are two, and `is_sqlite` chooses. What writes returns something too.
    """

    is_sqlite: bool

    def rows(self, text: str, given: Given = ()) -> list[tuple[Any, ...]]: ...

    def many(self, text: str, given: Sequence[Mapping[str, Any]]) -> None: ...


class DirectSqlite:
    """Executes on SQLite's own connection."""

    is_sqlite = True

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def rows(self, text: str, given: Given = ()) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._driver.execute(text, given).fetchall()
        return found

    def many(self, text: str, given: Sequence[Mapping[str, Any]]) -> None:
        self._driver.executemany(text, given)


class DirectPostgres:
    """Executes on psycopg's own connection."""

    is_sqlite = False

    def __init__(self, driver: Any) -> None:
        from psycopg import RawCursor  # with SQLite alone the driver is not installed

        # It takes a text as the server does. Others read all of it each time to find the
        # places of parameters, and our texts are long.
        self._cursor = RawCursor(driver)

    def rows(self, text: str, given: Given = ()) -> list[tuple[Any, ...]]:
        numbered, names = _numbered(text)
        values = [given[name] for name in names] if isinstance(given, Mapping) else given
        found: list[tuple[Any, ...]] = self._cursor.execute(numbered, values).fetchall()
        return found

    def many(self, text: str, given: Sequence[Mapping[str, Any]]) -> None:
        raise NotImplementedError("PostgreSQL is given many rows as JSON")


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


class Borrowed:
    """Executes inside a transaction of SQLAlchemy's, ours or the user's."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.is_sqlite = connection.dialect.name == "sqlite"

    def rows(self, text: str, given: Given = ()) -> list[tuple[Any, ...]]:
        values = given if isinstance(given, Mapping) else tuple(given)
        found = self._connection.exec_driver_sql(text, values or None)
        return [tuple(row) for row in found] if found.returns_rows else []

    def many(self, text: str, given: Sequence[Mapping[str, Any]]) -> None:
        self._connection.exec_driver_sql(text, [dict(row) for row in given])

"""Helpers for statements with many rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite

#: Databases limit the parameters of one statement; SQLite's oldest limit is 999.
MANY = 500


def portions(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Cut a list into pieces that fit one statement."""
    for start in range(0, len(items), MANY):
        yield items[start : start + MANY]


def upsert(connection: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """Return an INSERT that can have an ON CONFLICT clause."""
    is_postgres = connection.dialect.name == "postgresql"
    return postgresql.insert(table) if is_postgres else sqlite.insert(table)


def insert_or_ignore(
    connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]
) -> int:
    """Insert the rows that do not exist; return how many were inserted."""
    if not rows:
        return 0
    statement = upsert(connection, table).on_conflict_do_nothing()
    # On PostgreSQL SQLAlchemy drops the count of an INSERT by default.
    options = {"preserve_rowcount": True}
    return connection.execute(statement, list(rows), execution_options=options).rowcount

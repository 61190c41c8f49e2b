"""The base of the operations on rows of one kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql, sqlite

if TYPE_CHECKING:
    from flowengine.store.session import Session

#: Databases limit the parameters of one statement; SQLite's oldest limit is 999.
MANY = 500


def portions(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Cut a list into pieces that fit one statement."""
    for start in range(0, len(items), MANY):
        yield items[start : start + MANY]


class Part:
    """Operations on rows of one kind, in a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def _upsert(self, table: Table) -> postgresql.Insert | sqlite.Insert:
        """Return an INSERT that can have an ON CONFLICT clause."""
        is_postgres = self._session.connection.dialect.name == "postgresql"
        return postgresql.insert(table) if is_postgres else sqlite.insert(table)

    def _insert_or_ignore(self, table: Table, row: Mapping[str, Any]) -> None:
        self._session.execute(self._upsert(table).on_conflict_do_nothing(), row)

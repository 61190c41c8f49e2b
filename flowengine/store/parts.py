"""The base of the operations on rows of one kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Row, String, TextClause, bindparam, text

if TYPE_CHECKING:
    from flowengine.store.session import SqlSession

#: Databases limit the parameters of one statement; SQLite's oldest limit is 999.
MANY = 500


def statement(sql: str, *lists: str) -> TextClause:
    """Return a statement of SQLAlchemy; the parameters `lists` are lists, written `IN :name`."""
    # Without a type, PostgreSQL would compare the column with an empty list of integers.
    return text(sql).bindparams(*(bindparam(name, type_=String, expanding=True) for name in lists))


def quoted(values: Iterable[str]) -> str:
    """Return constants as an SQL list: a bound parameter would hide them from the planner."""
    return ", ".join(f"'{value}'" for value in sorted(values))


class Part:
    """Operations on rows of one kind, in a session."""

    def __init__(self, session: SqlSession) -> None:
        self._session = session

    def _in_portions(
        self, query: TextClause, ids: Sequence[str], **values: Any
    ) -> Iterator[Row[*tuple[Any, ...]]]:
        """Execute a query for a list `ids`, cut into pieces that fit one statement."""
        for start in range(0, len(ids), MANY):
            values["ids"] = list(ids[start : start + MANY])
            yield from self._session.execute(query, values)

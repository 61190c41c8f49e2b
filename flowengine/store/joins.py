"""Joins: counters of tasks that are evaluated together."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, bindparam, update
from sqlalchemy.dialects import postgresql, sqlite

from flowengine.store.tables import JoinRow

table = JoinRow.__table__  # type: ignore[attr-defined]
_COUNT_DOWN = (
    update(table)
    .where(table.c.id == bindparam("join"))
    .values(remaining=table.c.remaining - bindparam("count"), updated=bindparam("now"))
    .returning(table.c.remaining)
)


def add(connection: Connection, run_id: str, counts: Mapping[str, int], now: int) -> None:
    """Count so many tasks more in each of these joins."""
    if not counts:
        return
    build = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = build(table)
    more = table.c.remaining + statement.excluded.remaining
    statement = statement.on_conflict_do_update(index_elements=["id"], set_={"remaining": more})
    rows = [
        {"id": join_id, "run_id": run_id, "remaining": count, "updated": now}
        for join_id, count in sorted(counts.items())
    ]
    connection.execute(statement, rows)


def count_down(connection: Connection, join_id: str, now: int, count: int = 1) -> int:
    """Count reported tasks; return how many are left."""
    values = {"join": join_id, "count": count, "now": now}
    return int(connection.execute(_COUNT_DOWN, values).scalar_one())

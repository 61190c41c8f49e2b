"""Joins: counters of tasks that are evaluated together."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, update

from flowengine.store.tables import JoinRow

table = JoinRow.__table__  # type: ignore[attr-defined]
_COUNT_DOWN = (
    update(table)
    .where(table.c.id == bindparam("join"))
    .values(remaining=table.c.remaining - bindparam("count"), updated=bindparam("now"))
    .returning(table.c.remaining)
)


def count_down(connection: Connection, join_id: str, now: int, count: int = 1) -> int:
    """Count reported tasks; return how many are left."""
    values = {"join": join_id, "count": count, "now": now}
    return int(connection.execute(_COUNT_DOWN, values).scalar_one())

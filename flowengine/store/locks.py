"""Leases on doing something alone: they end by themselves, whatever becomes of the holder."""

from __future__ import annotations

from sqlalchemy import Connection, and_, bindparam, or_, select, update

from flowengine.store.rows import insert_or_ignore
from flowengine.store.tables import LockRow

_table = LockRow.__table__  # type: ignore[attr-defined]
_TAKE = (
    update(_table)
    .where(
        and_(
            _table.c.name == bindparam("lock"),
            or_(
                _table.c.until <= bindparam("now"),
                _table.c.owner == bindparam("taker"),
                # Two durations from now is further than clocks differ: the clock was set back.
                _table.c.until > bindparam("unexplained"),
            ),
        )
    )
    .values(owner=bindparam("taker"), until=bindparam("end"))
)
_LET_GO = (
    update(_table)
    .where(and_(_table.c.name == bindparam("lock"), _table.c.owner == bindparam("taker")))
    .values(until=0)
)
_ALL_UNTIL = select(_table.c.name, _table.c.until).where(
    _table.c.name.startswith(bindparam("prefix"))
)
_UNTIL = select(_table.c.until).where(_table.c.name == bindparam("lock"))


def acquire(connection: Connection, name: str, owner: str, duration_ms: int, now: int) -> bool:
    """Take or extend a lease; False while somebody else has it."""
    insert_or_ignore(connection, _table, [{"name": name, "owner": "", "until": 0}])
    end = now + duration_ms
    values = {
        "lock": name,
        "taker": owner,
        "now": now,
        "end": end,
        "unexplained": end + duration_ms,
    }
    return bool(connection.execute(_TAKE, values).rowcount)


def release(connection: Connection, name: str, owner: str) -> bool:
    return bool(connection.execute(_LET_GO, {"lock": name, "taker": owner}).rowcount)


def ends(connection: Connection, name: str) -> int:
    """Return when a lease ends or ended; 0 for one that was never taken."""
    return int(connection.execute(_UNTIL, {"lock": name}).scalar() or 0)


def ends_of(connection: Connection, prefix: str) -> dict[str, int]:
    """Return when the leases end or ended whose name begins with the prefix."""
    return {row[0]: row[1] for row in connection.execute(_ALL_UNTIL, {"prefix": prefix})}

"""Leases by name, for work that one process at a time does. They expire with their time."""

from __future__ import annotations

from sqlalchemy import and_, bindparam, or_, select, update

from flowengine.store.parts import Part
from flowengine.store.tables import LockRow

_table = LockRow.__table__  # type: ignore[attr-defined]
_ACQUIRE = (
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
_ALL_UNTIL = select(_table.c.name, _table.c.until).where(
    _table.c.name.startswith(bindparam("prefix"))
)
_UNTIL = select(_table.c.until).where(_table.c.name == bindparam("lock"))


class Locks(Part):
    """Acquires leases by name."""

    def acquire(self, name: str, owner: str, duration_ms: int, now: int) -> bool:
        """Acquire or extend a lease; False while another owner holds it."""
        self._insert_or_ignore(_table, {"name": name, "owner": "", "until": 0})
        end = now + duration_ms
        values = {
            "lock": name,
            "taker": owner,
            "now": now,
            "end": end,
            "unexplained": end + duration_ms,
        }
        return bool(self._session.execute(_ACQUIRE, values).rowcount)

    def ends(self, name: str) -> int:
        """Return when a lease ends or ended; 0 if it was never acquired."""
        return int(self._session.execute(_UNTIL, {"lock": name}).scalar() or 0)

    def ends_of(self, prefix: str) -> dict[str, int]:
        """Return when the leases end or ended whose name has this prefix."""
        rows = self._session.execute(_ALL_UNTIL, {"prefix": prefix})
        return {name: until for name, until in rows}  # noqa: C416 - rows are not tuples

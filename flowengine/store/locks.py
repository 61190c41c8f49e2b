"""Leases by name, for work that one process at a time does. They expire with their time."""

from __future__ import annotations

from flowengine.store.parts import Part, statement

_INSERT = statement(
    "INSERT INTO flowengine_lock (name, owner, until) VALUES (:name, '', 0) ON CONFLICT DO NOTHING"
)
# Two durations from now is further than clocks differ: the clock was set back.
_ACQUIRE = statement(
    "UPDATE flowengine_lock SET owner = :owner, until = :end WHERE name = :name "
    "AND (until <= :now OR owner = :owner OR until > :unexplained)"
)
_EXPIRE = statement("UPDATE flowengine_lock SET until = 0 WHERE name = :name")
_ENDS = "SELECT until FROM flowengine_lock WHERE name = %s"
_OWNED = "SELECT owner, until FROM flowengine_lock WHERE name = %s"
_ENDS_OF = statement("SELECT name, until FROM flowengine_lock WHERE name LIKE :beginning")


class Locks(Part):
    """Acquires leases by name."""

    def acquire(self, name: str, owner: str, duration_ms: int, now: int) -> bool:
        """Acquire or extend a lease; False while another owner holds it."""
        self._session.execute(_INSERT, {"name": name})
        end = now + duration_ms
        values = {"name": name, "owner": owner, "now": now, "end": end}
        values["unexplained"] = end + duration_ms
        return bool(self._session.execute(_ACQUIRE, values).rowcount)

    def expire(self, name: str) -> None:
        """End a lease now."""
        self._session.execute(_EXPIRE, {"name": name})

    def owned(self, name: str) -> tuple[str, int]:
        """Return the last owner of a lease, and when it ends or ended."""
        rows = self._session.rows(_OWNED, (name,))
        return (str(rows[0][0]), int(rows[0][1])) if rows else ("", 0)

    def ends(self, name: str) -> int:
        """Return when a lease ends or ended; 0 if it was never acquired."""
        rows = self._session.rows(_ENDS, (name,))
        return int(rows[0][0]) if rows else 0

    def ends_of(self, prefix: str) -> dict[str, int]:
        """Return when the leases end or ended whose name has this prefix."""
        rows = self._session.execute(_ENDS_OF, {"beginning": f"{prefix}%"})
        return {name: until for name, until in rows}  # noqa: C416 - rows are not tuples

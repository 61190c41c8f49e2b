"""Circuit breakers in the database: what somebody has set, and the tasks that they have parked."""

from __future__ import annotations

from typing import NamedTuple

from flowengine.store.parts import Part, statement
from flowengine.store.records import CIRCUIT
from flowengine.store.tables import TASK_IS_PENDING

_COLUMNS = "name, is_open, failure_threshold, timeout_ms, actor, reason, updated"
_ALL = f"SELECT {_COLUMNS} FROM flowengine_breaker ORDER BY name"
_GET = f"SELECT {_COLUMNS} FROM flowengine_breaker WHERE name = %s"
_PUT = statement(
    f"INSERT INTO flowengine_breaker ({_COLUMNS}) VALUES (:name, :is_open, :failure_threshold, "
    ":timeout_ms, :actor, :reason, :updated) ON CONFLICT (name) DO UPDATE SET "
    "is_open = excluded.is_open, failure_threshold = excluded.failure_threshold, "
    "timeout_ms = excluded.timeout_ms, actor = excluded.actor, reason = excluded.reason, "
    "updated = excluded.updated"
)
_REMOVE = statement("DELETE FROM flowengine_breaker WHERE name = :name RETURNING name")
# Reads the pending tasks: for people, not for every day.
_PARKED = statement(
    "SELECT limit_key, count(*) AS parked, min(due) AS due FROM flowengine_task "
    f"WHERE {TASK_IS_PENDING} AND limit_key IS NOT NULL AND waited_circuit IS NOT NULL "
    "AND due > :now GROUP BY limit_key"
)


class BreakerOverride(NamedTuple):
    """The values that somebody has set for a breaker; None: that of the code."""

    name: str
    is_open: bool  #: no call is permitted, whatever its state
    failure_threshold: int | None
    timeout_ms: int | None
    actor: str
    reason: str
    updated: int


class Breakers(Part):
    def all(self) -> list[BreakerOverride]:
        return [_override(row) for row in self._session.rows(_ALL, ())]

    def get(self, name: str) -> BreakerOverride | None:
        rows = self._session.rows(_GET, (name,))
        return _override(rows[0]) if rows else None

    def put(self, override: BreakerOverride) -> None:
        self._session.execute(_PUT, override._asdict())

    def remove(self, name: str) -> bool:
        """Let the code count again; return whether something was set."""
        return bool(self._session.execute(_REMOVE, {"name": name}).all())

    def parked(self, now: int) -> dict[str, tuple[int, int]]:
        """Return how many tasks are parked by each breaker, and when the first asks again."""
        rows = self._session.execute(_PARKED, {"now": now})
        return {row.limit_key.removeprefix(CIRCUIT): (row.parked, row.due) for row in rows}


def _override(row: tuple[object, ...]) -> BreakerOverride:
    found = BreakerOverride(*row)  # type: ignore[arg-type]
    return found._replace(is_open=bool(found.is_open))

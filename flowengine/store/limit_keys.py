"""The keys of limits and rates for people: what they admit, who holds them, and overrides."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import TextClause

from flowengine.evaluator.states import TaskState
from flowengine.store.parts import Part, quoted, statement
from flowengine.store.tables import TASK_IS_WAITING

_COLUMNS = "key, count AS number, per, set_count, set_per, set_by, set_reason, set_at"
_PAGE = statement(
    f"SELECT {_COLUMNS} FROM flowengine_limit WHERE key > :after AND key < :last "
    "ORDER BY key LIMIT :most"
)
_OVERRIDDEN = statement(
    f"SELECT {_COLUMNS} FROM flowengine_limit WHERE key > :after AND key < :last "
    "AND set_at IS NOT NULL ORDER BY key LIMIT :most"
)
# By the queues, which are few: a key has thousands of tasks, and there may be thousands of keys.
_AWAITED = statement(
    f"SELECT {_COLUMNS} FROM flowengine_limit WHERE key > :after AND key < :last "
    "AND key IN (SELECT blocked_on FROM flowengine_queue WHERE blocked_on IS NOT NULL) "
    "ORDER BY key LIMIT :most"
)
_GET = f"SELECT {_COLUMNS} FROM flowengine_limit WHERE key = :key"
_NAMES = statement(
    "SELECT key FROM flowengine_limit WHERE key > :after AND key < :last ORDER BY key LIMIT :most"
)
_HOLDS = (
    f"(s.until IS NULL AND t.state IN ({quoted(TaskState.ADMITTED)}) OR s.until > :now "
    "OR s.per IS NOT NULL AND t.started + s.per > :now)"
)
_USED = statement(
    "SELECT s.key, count(*) AS used, min(s.until) AS next FROM flowengine_slot s "
    f"LEFT JOIN flowengine_task t ON t.uuid = s.task_id WHERE s.key IN :keys AND {_HOLDS} "
    "GROUP BY s.key",
    "keys",
)
_WAITING = statement(
    "SELECT q.blocked_on AS key, count(*) AS waiting FROM flowengine_queue q "
    f"JOIN flowengine_task t ON t.queue = q.id AND t.{TASK_IS_WAITING} "
    "WHERE q.blocked_on IN :keys GROUP BY q.blocked_on",
    "keys",
)
_HOLDERS = statement(
    "SELECT t.run_id, t.step_path, t.state, t.started, s.until, w.server_name "
    "FROM flowengine_slot s LEFT JOIN flowengine_task t ON t.uuid = s.task_id "
    "LEFT JOIN flowengine_server w ON w.uuid = t.server_id "
    f"WHERE s.key = :key AND {_HOLDS} ORDER BY t.started, s.task_id LIMIT :most"
)
_SET = statement(
    "UPDATE flowengine_limit SET set_count = :count, set_per = :per, set_by = :actor, "
    "set_reason = :reason, set_at = :at, updated = :now WHERE key = :key"
)


class LimitKey(NamedTuple):
    """A key, the numbers of the code, and those that somebody has set in their place."""

    key: str
    number: int
    per: int | None
    set_number: int | None
    set_per: int | None
    set_by: str | None
    set_reason: str | None
    set_at: int | None


class Holder(NamedTuple):
    """A task that has a slot of a key. Of a rate also one that was started within the period."""

    run: str | None  #: None: it was purged, and its slot of a rate is not free yet
    step: str | None
    state: str | None
    started: int | None
    until: int | None  #: of a rate: when the slot is free
    server: str | None


class LimitKeys(Part):
    def page(self, kind: str, after: str, most: int, *, only: str = "") -> list[LimitKey]:
        """Return keys of a kind behind one, by name; `only` those that are "set" or "awaited"."""
        query = {"": _PAGE, "set": _OVERRIDDEN, "awaited": _AWAITED}[only]
        values = {"after": after or f"{kind}:", "last": f"{kind};", "most": most}
        return [LimitKey(*row) for row in self._session.execute(query, values)]

    def get(self, key: str, *, lock: bool = False) -> LimitKey | None:
        query = _locking(self._session.dialect.LOCK if lock else "")
        row = self._session.execute(query, {"key": key}).first()
        return None if row is None else LimitKey(*row)

    def names(self, kind: str, most: int) -> list[str]:
        values = {"after": f"{kind}:", "last": f"{kind};", "most": most}
        return list(self._session.execute(_NAMES, values).scalars())

    def used(self, keys: Collection[str], now: int) -> dict[str, tuple[int, int | None]]:
        """Return how many slots of each key are taken, and when the next one of a rate is free."""
        rows = self._session.execute(_USED, {"keys": sorted(keys), "now": now})
        return {row.key: (row.used, row.next) for row in rows}

    def waiting(self, keys: Collection[str]) -> dict[str, int]:
        """Return how many tasks wait for each of these keys."""
        rows = self._session.execute(_WAITING, {"keys": sorted(keys)})
        return {row.key: row.waiting for row in rows}

    def holders(self, key: str, now: int, most: int) -> list[Holder]:
        values = {"key": key, "now": now, "most": most}
        return [Holder(*row) for row in self._session.execute(_HOLDERS, values)]

    def set(
        self, key: str, number: int | None, per: int | None, actor: str, reason: str, now: int
    ) -> None:
        """Override the numbers of a locked key; without a number those of the code count."""
        is_set = number is not None
        values = {"key": key, "count": number, "per": per, "now": now}
        values |= {"actor": actor if is_set else None, "reason": reason if is_set else None}
        self._session.execute(_SET, {**values, "at": now if is_set else None})


@functools.cache
def _locking(lock: str) -> TextClause:
    return statement(_GET + lock)

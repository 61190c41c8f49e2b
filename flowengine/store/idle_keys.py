"""Remove the keys of limits and rates that no run has used for long.

Lock order: keys by name, then slots, as in admission. The rows of the keys are locked first and
everything else is read after that: an admission that came before is seen, and one that comes later
waits, finds no row and creates a new one. Slots of open tasks count whether the key has a row or
not, so no limit is exceeded meanwhile.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from sqlalchemy import TextClause

from flowengine.store.parts import MANY, Part, statement

_UNUSED = (
    "SELECT key, per FROM flowengine_limit WHERE key > :after AND updated < :before "
    f"AND since < :before AND due IS NULL AND set_at IS NULL ORDER BY key LIMIT {MANY}"
)
_REMOVE = statement(
    "DELETE FROM flowengine_limit WHERE key IN :keys AND due IS NULL AND set_at IS NULL "
    "AND NOT EXISTS (SELECT 1 "
    "FROM flowengine_slot s WHERE s.key = flowengine_limit.key) AND NOT EXISTS (SELECT 1 "
    "FROM flowengine_queue q WHERE q.blocked_on = flowengine_limit.key) RETURNING key",
    "keys",
)


class IdlePage(NamedTuple):
    removed: int
    last: str  #: the last key that was looked at; empty: there are no more


class IdleKeys(Part):
    def remove(self, after: str, before: int, now: int) -> IdlePage:
        """Look at some keys behind `after`; remove those not used since `before`, and idle now."""
        dialect = self._session.dialect
        query = _locking(f"{dialect.LOCK}{dialect.SKIP_LOCKED}")
        found = self._session.execute(query, {"after": after, "before": before}).all()
        if not found:
            return IdlePage(0, "")
        keys = [row.key for row in found]
        rates = [row.key for row in found if row.per is not None]
        self._session.admission.free_slots(keys, rates, now)
        removed = self._session.execute(_REMOVE, {"keys": keys}).all()
        return IdlePage(len(removed), keys[-1] if len(keys) == MANY else "")


@functools.cache
def _locking(lock: str) -> TextClause:
    return statement(_UNUSED + lock)

"""Locks on work, by key: one holder at a time, for a limited duration, by the database's clock.

A lock ends when it is released, when it expires, or when the server that holds it has ended. The
leases of `flowengine_lock` are the engine's own; keys of users cannot collide with them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flowengine.store.backend import Dialect, in_dialect
from flowengine.store.parts import Part, quoted
from flowengine.store.servers import ServerState

_LOCK = "flowengine_worklock"
# Sorted by key: two statements that take several of the same locks could deadlock. A lock that was
# acquired further ahead than its duration is unexplained: the clock was set back.
_ACQUIRE = (
    f"INSERT INTO {_LOCK} (key, holder, acquired, expires, meta) "
    "SELECT {LOCK_KEY}, %(holder)s, {now}, {now} + %(duration)s, {LOCK_META} FROM {LOCK_ROWS} "
    "WHERE true ORDER BY 1 ON CONFLICT (key) DO UPDATE SET holder = excluded.holder, "
    "acquired = excluded.acquired, expires = excluded.expires, meta = excluded.meta "
    f"WHERE {_LOCK}.expires <= excluded.acquired "
    f"OR {_LOCK}.acquired > excluded.acquired + {_LOCK}.expires - {_LOCK}.acquired "
    f"OR EXISTS (SELECT 1 FROM flowengine_server s WHERE s.uuid = {_LOCK}.holder "
    f"AND s.state IN ({quoted(ServerState.ENDED)})) RETURNING key"
)
_OWN = "key IN (SELECT {LOCK_KEY} FROM {LOCK_ROWS}) AND holder = %(holder)s"
_EXTEND = (
    f"UPDATE {_LOCK} SET expires = {{now}} + %(duration)s "
    f"WHERE {_OWN} AND expires > {{now}} RETURNING key"
)
_RELEASE = f"DELETE FROM {_LOCK} WHERE {_OWN} RETURNING key, expires > {{now}}"
_HELD = (
    f"SELECT l.key, l.holder, l.acquired, l.expires, l.meta FROM {_LOCK} l "
    "WHERE l.key IN (SELECT {LOCK_KEY} FROM {LOCK_ROWS}) AND l.expires > {now} "
    "AND NOT EXISTS (SELECT 1 FROM flowengine_server s WHERE s.uuid = l.holder "
    f"AND s.state IN ({quoted(ServerState.ENDED)}))"
)
_REMOVE = (
    f"DELETE FROM {_LOCK} WHERE key IN (SELECT key FROM {_LOCK} WHERE expires < %s "
    "ORDER BY expires LIMIT %s) RETURNING key"
)


@dataclass(frozen=True, slots=True)
class LockMetaData:
    """The work that a lock is held for, to be read by people."""

    topic: str = ""  #: the task list
    handler: str = ""  #: the facet
    step_name: str = ""  #: the path of the step
    step_id: str = ""


@dataclass(frozen=True, slots=True)
class LockDefinition:
    """A lock that is held."""

    key: str
    holder: str
    acquired_at: int  #: in milliseconds since the epoch
    expires_at: int
    meta: LockMetaData | None = None


class WorkLocks(Part):
    """Acquires locks; each operation commits by itself outside a transaction."""

    def acquire(
        self, keys: Mapping[str, LockMetaData | None], holder: str, duration_ms: int
    ) -> set[str]:
        """Acquire these locks; return the keys of those that no holder had."""
        values = {"holder": holder, "duration": duration_ms}
        return {key for (key,) in self._rows(_ACQUIRE, keys, values)}

    def extend(self, keys: Sequence[str], holder: str, duration_ms: int) -> set[str]:
        """Extend locks that the holder has; return their keys. An expired one is not extended."""
        values = {"holder": holder, "duration": duration_ms}
        return {key for (key,) in self._rows(_EXTEND, dict.fromkeys(keys), values)}

    def release(self, keys: Sequence[str], holder: str) -> set[str]:
        """Release locks of the holder; return the keys of those that had not expired."""
        rows = self._rows(_RELEASE, dict.fromkeys(keys), {"holder": holder})
        return {key for key, was_held in rows if was_held}

    def held(self, keys: Sequence[str]) -> dict[str, LockDefinition]:
        """Return those of these locks that somebody holds."""
        rows = self._rows(_HELD, dict.fromkeys(keys), {})
        return {row[0]: _definition(*row) for row in rows}

    def remove_expired(self, before: int, most: int) -> int:
        """Remove locks that expired before that time."""
        return len(self._session.rows(_REMOVE, (before, most)))

    def _rows(
        self, template: str, keys: Mapping[str, LockMetaData | None], values: dict[str, Any]
    ) -> list[tuple[Any, ...]]:
        session = self._session
        now = session.database.statement_time
        rows = [
            {"key": key, "meta": json.dumps(asdict(meta)) if meta else None}
            for key, meta in keys.items()
        ]
        values |= {"rows": json.dumps(rows), "now": now}
        return session.rows(_text(template, session.dialect, now is not None), values)


def _definition(
    key: str, holder: str, acquired: int, expires: int, meta: str | None
) -> LockDefinition:
    known = LockMetaData(**json.loads(meta)) if meta else None
    return LockDefinition(key, holder, acquired, expires, known)


@functools.cache
def _text(template: str, dialect: Dialect, has_clock: bool) -> str:
    # The clock has a mark of a parameter itself, so it is filled in last.
    text = in_dialect(template.replace("{now}", "{{now}}"), dialect)
    return text.replace("{now}", "%(now)s" if has_clock else dialect.CLOCK)

"""Keys of runs: the idempotency key of a start, and the singleton key of one open run at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flowengine.evaluator.states import RunState
from flowengine.store.parts import MANY, Part, statement
from flowengine.store.tables import RUN_IS_QUEUED


class KeyedRun(NamedTuple):
    """The run that has a key."""

    id: str
    state: str
    error: str | None
    key_expires: int | None


_WITH_KEY = (
    f"SELECT {', '.join(KeyedRun._fields)} FROM flowengine_run "
    "WHERE tenant = %s AND workflow = %s AND idempotency_key = %s"
)
_RELEASE_KEY = (
    "UPDATE flowengine_run SET released_key = idempotency_key, idempotency_key = NULL "
    f"WHERE id = %s AND (state IN ('{RunState.FAILED}', '{RunState.CANCELLED}') "
    "OR key_expires <= %s) AND idempotency_key IS NOT NULL RETURNING id"
)
_OF_WORKFLOW = "FROM flowengine_run WHERE tenant = %s AND workflow = %s"
_WITH_SINGLETON = f"SELECT id {_OF_WORKFLOW} AND singleton_key = %s AND finished IS NULL"
_QUEUED = f"SELECT id {_OF_WORKFLOW} AND queued_key = %s AND {RUN_IS_QUEUED} ORDER BY created, id"
_LAST_QUEUED = f"SELECT max(created) {_OF_WORKFLOW} AND queued_key = %s AND {RUN_IS_QUEUED}"
_STILL_QUEUED = f"id = %s AND {RUN_IS_QUEUED} AND state = '{RunState.QUEUED}' RETURNING id"
_TAKE_QUEUED = (
    f"UPDATE flowengine_run SET singleton_key = queued_key, queued_key = NULL WHERE {_STILL_QUEUED}"
)
_GIVE = f"UPDATE flowengine_run SET singleton_key = %s, queued_key = NULL WHERE {_STILL_QUEUED}"
_NEXT_KEY = (
    f"SELECT queued_key {_OF_WORKFLOW} AND queued_key LIKE %s AND queued_key > %s "
    f"AND {RUN_IS_QUEUED} ORDER BY queued_key LIMIT 1"
)
_OLDEST = (
    f"SELECT created, id {_OF_WORKFLOW} AND queued_key = %s AND {RUN_IS_QUEUED} "
    "ORDER BY created, id LIMIT 1"
)
_QUEUED_LIKE = f"{_OF_WORKFLOW} AND queued_key LIKE %s AND {RUN_IS_QUEUED} ORDER BY created, id"
_SINGLETONS_LIKE = (
    f"SELECT singleton_key, id {_OF_WORKFLOW} AND singleton_key LIKE %s AND finished IS NULL "
    "ORDER BY created, id"
)
_QUEUES_OF = statement(
    f"SELECT id, tenant, workflow, queued_key FROM flowengine_run WHERE id IN :ids "
    f"AND {RUN_IS_QUEUED}",
    "ids",
)
_FREE_QUEUES = (
    "SELECT DISTINCT q.tenant, q.workflow, q.queued_key FROM (SELECT tenant, workflow, queued_key "
    f"FROM flowengine_run WHERE {RUN_IS_QUEUED} AND id >= %s ORDER BY id LIMIT {MANY}) q "
    "WHERE NOT EXISTS (SELECT 1 FROM flowengine_run r WHERE r.tenant = q.tenant "
    "AND r.workflow = q.workflow AND r.singleton_key = q.queued_key AND r.finished IS NULL)"
)


class RunKeys(Part):
    def with_key(self, tenant: str, workflow: str, key: str) -> KeyedRun | None:
        """Return the run that has this key."""
        rows = self._session.rows(_WITH_KEY, (tenant, workflow, key))
        return KeyedRun(*rows[0]) if rows else None

    def release_key(self, run_id: str, now: int) -> None:
        """Take the key away from a run that has failed, or whose key has expired."""
        self._session.rows(_RELEASE_KEY, (run_id, now))

    def with_singleton(self, tenant: str, workflow: str, key: str) -> str | None:
        """Return the open run that has this singleton key."""
        rows = self._session.rows(_WITH_SINGLETON, (tenant, workflow, key))
        return rows[0][0] if rows else None

    def queued(self, tenant: str, workflow: str, key: str) -> list[str]:
        """Return the runs that wait for a singleton key, the oldest first."""
        return [row[0] for row in self._session.rows(_QUEUED, (tenant, workflow, key))]

    def last_queued(self, tenant: str, workflow: str, key: str) -> int:
        """Return when the last of the runs was started that wait for a singleton key."""
        ((created,),) = self._session.rows(_LAST_QUEUED, (tenant, workflow, key))
        return int(created or 0)

    def take_queued(self, tenant: str, workflow: str, key: str) -> str | None:
        """Give the singleton key to the oldest run that waits for it; return the run."""
        dialect = self._session.dialect
        text = f"{_QUEUED} LIMIT 1{dialect.LOCK}{dialect.SKIP_LOCKED}"
        for (run_id,) in self._session.rows(text, (tenant, workflow, key)):
            taken = self._session.rows(_TAKE_QUEUED, (run_id,))
            return run_id if taken else None
        return None

    def queued_like(self, tenant: str, workflow: str, keys: str) -> list[str]:
        """Return the runs that wait for a key of this pattern, the oldest first."""
        rows = self._session.rows(f"SELECT id {_QUEUED_LIKE}", (tenant, workflow, keys))
        return [run_id for (run_id,) in rows]

    def first_queued_like(self, tenant: str, workflow: str, keys: str) -> tuple[str, str] | None:
        """Return the oldest run that waits for a key of this pattern, and the key."""
        first: list[tuple[int, str, str]] = []
        key = keys.removesuffix("%")
        # From key to key by the index: a long queue is not read.
        while rows := self._session.rows(_NEXT_KEY, (tenant, workflow, keys, key)):
            ((key,),) = rows
            oldest = self._session.rows(_OLDEST, (tenant, workflow, key))
            first += [(created, run_id, key) for created, run_id in oldest]
        return min(first)[1:] if first else None

    def singletons_like(self, tenant: str, workflow: str, keys: str) -> dict[str, str]:
        """Return the open runs with a singleton key of this pattern, by key, the oldest first."""
        rows = self._session.rows(_SINGLETONS_LIKE, (tenant, workflow, keys))
        return dict(rows)

    def queues_of(self, run_ids: Sequence[str]) -> list[tuple[str, str, str, str]]:
        """Return those of these runs that are queued, with tenant, workflow and key."""
        rows = self._in_portions(_QUEUES_OF, run_ids)
        return [(row.id, row.tenant, row.workflow, row.queued_key) for row in rows]

    def give_singleton(self, run_id: str, key: str) -> bool:
        """Give a singleton key to a queued run; False if it is queued no more."""
        return bool(self._session.rows(_GIVE, (key, run_id)))

    def free_queues(self, first: str) -> list[tuple[str, str, str]]:
        """Return tenant, workflow and key of runs that wait for a singleton key which is free.

        A page of the queued runs is looked at, from the id `first` on, and from the start.
        """
        pages = [self._session.rows(_FREE_QUEUES, (start,)) for start in (first, "")]
        found = {(tenant, workflow, key) for page in pages for tenant, workflow, key in page}
        return sorted(found)

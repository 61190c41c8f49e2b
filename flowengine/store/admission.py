"""Admission: keys, slots and queues of tasks that wait for limits and rates.

The row of a key is locked while slots of it are given: so no two transactions give the same slot.
Lock order: keys by name, then tasks, of which locked ones are skipped. A slot is a row, and counts
as long as its task is open: whatever ends the task, nothing else has to give the slot back.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import TextClause

from flowengine.evaluator.admission import StatedKey, Switches
from flowengine.evaluator.states import TaskState
from flowengine.store.parts import MANY, Part, quoted, statement
from flowengine.store.tables import LIMIT_IS_DUE, RUN_IS_QUEUED, TASK_IS_WAITING

_TAKES_SLOT = quoted({*TaskState.ADMITTED, TaskState.WAITING})  # a waiting task may reserve one
_IS_OPEN = (
    "EXISTS (SELECT 1 FROM flowengine_task t WHERE t.uuid = flowengine_slot.task_id "
    f"AND t.state IN ({_TAKES_SLOT}))"
)

_CREATE = statement(
    "INSERT INTO flowengine_limit (key, count, per, since, updated) "
    "VALUES (:key, :count, :per, :since, :now) ON CONFLICT DO NOTHING"
)
_KEYS = (
    "SELECT key, count AS number, per, since, set_count, set_per FROM flowengine_limit "
    "WHERE key IN :keys ORDER BY key"
)
_CHANGE = statement(
    "UPDATE flowengine_limit SET count = :count, per = :per, since = :since, updated = :now "
    "WHERE key = :key"
)
_SET_DUE = statement("UPDATE flowengine_limit SET due = :due, updated = :now WHERE key = :key")
_LOOKS = statement(f"SELECT due FROM flowengine_limit WHERE {LIMIT_IS_DUE}")
_CLEAR_DUE = statement("UPDATE flowengine_limit SET due = NULL WHERE key = :key AND due <= :now")
_DUE_KEYS = statement(
    f"SELECT key FROM flowengine_limit WHERE {LIMIT_IS_DUE} AND due <= :now "
    f"ORDER BY due LIMIT {MANY}"
)

# The period of a rate begins with the last start of the task: a released one is started again.
_NOTE_STARTS = statement(
    "UPDATE flowengine_slot SET until = per + (SELECT t.started FROM flowengine_task t "
    "WHERE t.uuid = flowengine_slot.task_id) WHERE key IN :keys AND per IS NOT NULL "
    "AND (until IS NULL OR until <= :now) AND EXISTS (SELECT 1 FROM flowengine_task t "
    "WHERE t.uuid = flowengine_slot.task_id AND t.started IS NOT NULL)",
    "keys",
)
# The last condition: a task may have started, and ended, after the statement above. Its slot stays
# until the next admission notes the start.
_FREE = statement(
    "DELETE FROM flowengine_slot WHERE key IN :keys "
    f"AND (until IS NULL AND NOT {_IS_OPEN} OR until <= :now AND NOT EXISTS (SELECT 1 "
    "FROM flowengine_task t WHERE t.uuid = flowengine_slot.task_id AND t.state = 'pending')) "
    "AND (per IS NULL OR NOT EXISTS (SELECT 1 FROM flowengine_task t "
    "WHERE t.uuid = flowengine_slot.task_id AND t.started + per > :now))",
    "keys",
)
_USED = statement(
    "SELECT key, count(*), min(until) FROM flowengine_slot WHERE key IN :keys GROUP BY key", "keys"
)
_TAKE = statement(
    "INSERT INTO flowengine_slot (key, task_id, per) VALUES (:key, :task, :per) "
    "ON CONFLICT DO NOTHING"
)
# A started task has used its rates, whoever starts it again: that slot is kept under another id.
_KEEP_STARTS = statement(
    "UPDATE flowengine_slot SET until = per + (SELECT t.started FROM flowengine_task t "
    "WHERE t.uuid = flowengine_slot.task_id), task_id = substr(task_id, 1, 26) || '-' || "
    "(SELECT t.lease FROM flowengine_task t WHERE t.uuid = flowengine_slot.task_id) "
    "WHERE task_id IN :ids AND per IS NOT NULL AND EXISTS (SELECT 1 FROM flowengine_task t "
    "WHERE t.uuid = flowengine_slot.task_id AND t.started IS NOT NULL)",
    "ids",
)
_GIVE_BACK = statement("DELETE FROM flowengine_slot WHERE task_id IN :ids", "ids")
_RESERVED = statement(
    "SELECT key FROM flowengine_slot WHERE key IN :keys AND task_id = :task", "keys"
)

_QUEUE = "SELECT id, limits, blocked_on, turn, passed, switches, due FROM flowengine_queue "
_QUEUES = statement(f"{_QUEUE} WHERE id IN :ids", "ids")
_BLOCKED = statement(f"{_QUEUE} WHERE blocked_on = :key ORDER BY turn, id LIMIT :most")
_DUE_QUEUES = statement(
    f"SELECT id, limits FROM flowengine_queue WHERE {LIMIT_IS_DUE} AND due <= :now "
    f"ORDER BY due LIMIT {MANY}"
)
_SAVE_QUEUE = statement(
    "INSERT INTO flowengine_queue (id, limits, blocked_on, turn, passed, switches, due, updated) "
    "VALUES (:id, :limits, :blocked_on, :turn, :passed, :switches, :due, :now) "
    "ON CONFLICT (id) DO UPDATE SET limits = excluded.limits, blocked_on = excluded.blocked_on, "
    "turn = excluded.turn, passed = excluded.passed, switches = excluded.switches, "
    "due = excluded.due, updated = excluded.updated"
)
_DROP_QUEUE = statement("DELETE FROM flowengine_queue WHERE id IN :ids", "ids")

_OF_QUEUE = f"{TASK_IS_WAITING} AND queue = :queue"
_FIRST = (
    "SELECT uuid, limits, CASE WHEN due > created THEN due ELSE created END "
    "+ COALESCE(waited_hold, 0) AS ready "
    f"FROM flowengine_task WHERE {_OF_QUEUE} AND due <= :now "
    "ORDER BY rank, due, position, uuid LIMIT :most"
)
_NEXT_DUE = statement(f"SELECT min(due) FROM flowengine_task WHERE {_OF_QUEUE} AND due > :now")
_ADMIT = statement(
    "UPDATE flowengine_task SET state = 'pending', published = :now, updated = :now, "
    "waited_limit = :limit, waited_rate = :rate "
    f"WHERE uuid = :task AND {TASK_IS_WAITING} RETURNING task_list_name"
)
_WHO_WAITS = statement(
    f"SELECT EXISTS (SELECT 1 FROM flowengine_task WHERE {TASK_IS_WAITING}) AS tasks, "
    f"EXISTS (SELECT 1 FROM flowengine_run WHERE {RUN_IS_QUEUED}) AS runs"
)
# A loose index scan, one queue after the other: each may have thousands of tasks.
_WAITING_QUEUES = statement(
    f"WITH RECURSIVE found(queue) AS (SELECT min(queue) FROM flowengine_task "
    f"WHERE {TASK_IS_WAITING} AND queue >= :first UNION ALL "
    f"SELECT (SELECT min(queue) FROM flowengine_task WHERE {TASK_IS_WAITING} "
    "AND queue > found.queue) FROM found WHERE found.queue IS NOT NULL) "
    "SELECT queue, (SELECT t.limits FROM flowengine_task t WHERE t.state = 'waiting' "
    "AND t.queue = found.queue LIMIT 1) FROM found WHERE queue IS NOT NULL LIMIT :most"
)
# Of queues that wait for a limit: those for which a slot is free, because its task has ended.
_PASSABLE = statement(
    "SELECT q.id FROM flowengine_queue q JOIN flowengine_limit l ON l.key = q.blocked_on "
    "WHERE q.id IN :ids AND l.per IS NULL AND COALESCE(l.set_count, l.count) > "
    "(SELECT count(*) FROM flowengine_slot s "
    "JOIN flowengine_task t ON t.uuid = s.task_id "
    f"WHERE s.key = l.key AND t.state IN ({_TAKES_SLOT}))",
    "ids",
)


class LockedKey(NamedTuple):
    """A key, and the numbers that somebody has set in place of the stated ones."""

    stated: StatedKey
    set_number: int | None = None
    set_per: int | None = None

    @property
    def counted(self) -> StatedKey:
        """The key with the numbers that count."""
        number, per = self.stated.number, self.stated.per
        return self.stated._replace(
            number=number if self.set_number is None else self.set_number,
            per=per if self.set_per is None else self.set_per,
        )


@dataclass(slots=True)
class StoredQueue:
    """The row of a queue."""

    id: str
    limits: str
    blocked_on: str | None = None
    turn: int = 0
    passed: int = 0
    switches: Switches = field(default_factory=list)
    due: int | None = None


class AdmissionRows(Part):
    """Reads and writes what decides which tasks are admitted."""

    # --- keys ---

    def create_keys(self, keys: Iterable[StatedKey], now: int) -> None:
        """Insert the rows of new keys, in a transaction of its own: the order is that of locks."""
        for key in sorted(keys):
            values = {"key": key.name, "count": key.number, "per": key.per, "since": key.since}
            self._session.execute(_CREATE, {**values, "now": now})

    def lock_keys(self, names: Collection[str]) -> dict[str, LockedKey]:
        """Lock the rows of these keys; return them as they are stored."""
        query = _locking(_KEYS, self._session.dialect.LOCK, "keys")
        rows = self._session.execute(query, {"keys": sorted(names)})
        return {
            row.key: LockedKey(
                StatedKey(row.key, row.number, row.per, row.since), row.set_count, row.set_per
            )
            for row in rows
        }

    def change_key(self, key: StatedKey, now: int) -> None:
        values = {"key": key.name, "count": key.number, "per": key.per, "since": key.since}
        self._session.execute(_CHANGE, {**values, "now": now})

    def set_due(self, key: str, due: int | None, now: int) -> None:
        self._session.execute(_SET_DUE, {"key": key, "due": due, "now": now})

    def clear_due(self, key: str, now: int) -> None:
        """Record that no task waits for a rate, unless another transaction has just set `due`."""
        self._session.execute(_CLEAR_DUE, {"key": key, "now": now})

    def due_keys(self, now: int) -> list[str]:
        """Return the rates of which a slot has become free, and for which tasks wait."""
        return list(self._session.execute(_DUE_KEYS, {"now": now}).scalars())

    # --- slots ---

    def free_slots(self, keys: Collection[str], rates: Collection[str], now: int) -> None:
        """Delete the slots of tasks that are not open, and of rates whose period has passed."""
        if rates:
            self._session.execute(_NOTE_STARTS, {"keys": sorted(rates), "now": now})
        self._session.execute(_FREE, {"keys": sorted(keys), "now": now})

    def used_slots(self, keys: Collection[str]) -> dict[str, tuple[int, int | None]]:
        """Return for each key with slots their number, and when the next one is free."""
        rows = self._session.execute(_USED, {"keys": sorted(keys)})
        return {key: (number, until) for key, number, until in rows}

    def take_slots(
        self, taken: Sequence[tuple[str, str]], periods: Mapping[str, int | None]
    ) -> None:
        """Insert slots, given as task and key."""
        rows = [{"key": key, "task": task, "per": periods[key]} for task, key in taken]
        if rows:
            self._session.execute(_TAKE, rows)

    def give_back(self, task_ids: Sequence[str]) -> None:
        """Free the slots of tasks that wait again; of rates only if the task was not started.

        Invariant: a task that has just begun to wait has no slot. Its own would keep it waiting.
        """
        for start in range(0, len(task_ids), MANY):
            ids = {"ids": list(task_ids[start : start + MANY])}
            self._session.execute(_KEEP_STARTS, ids)
            self._session.execute(_GIVE_BACK, ids)

    def reserved(self, task_id: str, keys: Collection[str]) -> frozenset[str]:
        """Return the keys of which a waiting task has a slot."""
        values = {"keys": sorted(keys), "task": task_id}
        return frozenset(self._session.execute(_RESERVED, values).scalars())

    # --- queues ---

    def queues(self, ids: Collection[str]) -> dict[str, StoredQueue]:
        rows = self._session.execute(_QUEUES, {"ids": sorted(ids)})
        return {row.id: _queue(row) for row in rows}

    def blocked_on(self, key: str, most: int) -> list[StoredQueue]:
        """Return the queues that wait for a key, the next first."""
        return [_queue(row) for row in self._session.execute(_BLOCKED, {"key": key, "most": most})]

    def save_queue(self, queue: StoredQueue, now: int) -> None:
        values = {
            "id": queue.id,
            "limits": queue.limits,
            "blocked_on": queue.blocked_on,
            "turn": queue.turn,
            "passed": queue.passed,
            "switches": json.dumps(queue.switches) if queue.switches else None,
            "due": queue.due,
        }
        self._session.execute(_SAVE_QUEUE, {**values, "now": now})

    def drop_queues(self, ids: Collection[str]) -> None:
        if ids:
            self._session.execute(_DROP_QUEUE, {"ids": sorted(ids)})

    # --- tasks ---

    def first_tasks(self, queue: str, most: int, now: int) -> list[tuple[str, str, int]]:
        """Lock the first due tasks of a queue; return id, limits and since when each is ready.

        Tasks that another transaction has locked are skipped: it cancels or holds them.
        """
        dialect = self._session.dialect
        query = _locking(_FIRST, f"{dialect.LOCK}{dialect.SKIP_LOCKED}")
        rows = self._session.execute(query, {"queue": queue, "most": most, "now": now})
        return [(row.uuid, row.limits, row.ready) for row in rows]

    def next_due(self, queue: str, now: int) -> int | None:
        """Return when the next task of a queue is due that is not due yet."""
        due: int | None = self._session.execute(_NEXT_DUE, {"queue": queue, "now": now}).scalar()
        return due

    def admit(self, task_id: str, waited: tuple[int, int], now: int) -> str | None:
        """Make a waiting task claimable; return its task list, None if it waits no longer."""
        values = {"task": task_id, "limit": waited[0], "rate": waited[1], "now": now}
        task_list: str | None = self._session.execute(_ADMIT, values).scalar()
        return task_list

    # --- recovery ---

    def next_looks(self) -> list[int]:
        """Return when slots of rates become free for which somebody waits."""
        return list(self._session.execute(_LOOKS).scalars())

    def has_waiting(self) -> tuple[bool, bool]:
        """Return whether tasks wait for a limit or rate, and runs for a singleton key."""
        row = self._session.execute(_WHO_WAITS).one()
        return bool(row.tasks), bool(row.runs)

    def due_queues(self, now: int) -> dict[str, str]:
        """Return the queues of which a task has become due, and the limits of each."""
        rows = self._session.execute(_DUE_QUEUES, {"now": now})
        return {queue: limits for queue, limits in rows}  # noqa: C416 - rows are not tuples

    def waiting_queues(self, first: str, most: int) -> dict[str, str]:
        """Return queues with waiting tasks, from the id `first` on, and the limits of each."""
        rows = self._session.execute(_WAITING_QUEUES, {"first": first, "most": most})
        return {queue: limits for queue, limits in rows if limits is not None}

    def passable(self, ids: Collection[str]) -> set[str]:
        """Return those of these queues that wait for a limit of which a slot is free."""
        if not ids:
            return set()
        return set(self._session.execute(_PASSABLE, {"ids": sorted(ids)}).scalars())


@functools.cache
def _locking(query: str, lock: str, *lists: str) -> TextClause:
    return statement(query + lock, *lists)


def _queue(row: Any) -> StoredQueue:
    switches = json.loads(row.switches) if row.switches else []
    return StoredQueue(row.id, row.limits, row.blocked_on, row.turn, row.passed, switches, row.due)

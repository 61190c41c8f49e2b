"""Remove ended runs, in transactions of limited size.

The run's own row is removed first, in one transaction with a marker that names the run: from then
on nobody finds the run. Its other rows follow in portions, then its large values and the marker. A
process that dies in between leaves the marker, and the next purge continues.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from flowengine.evaluator.records import ID_PREFIX
from flowengine.evaluator.states import RunState
from flowengine.store.backend import in_dialect
from flowengine.store.parts import Part, quoted
from flowengine.store.tables import OUTBOX_IS_DUE, RUN_IS_CHILD, RUN_IS_LISTED, RUN_IS_OF_AGENT

_NOT_AVAILABLE = "55P03"  #: PostgreSQL's SQLSTATE for a lock that is held
MARKER = "purge:"  #: and the id of the run: the name of a row of flowengine_lock

_WHERE = (
    "r.state = %(state)s AND r.parent_run_id IS NULL "
    "AND r.created < %(before)s AND r.finished < %(before)s"
)
_BEHIND = " AND r.created >= %(at)s AND (r.created > %(at)s OR r.id > %(behind)s)"
_ROOTS = (
    "SELECT r.id, r.created, r.step_count FROM flowengine_run r WHERE {where} "
    "ORDER BY r.created, r.id LIMIT %(most)s"
)
_CHOSEN = (
    "SELECT r.id, r.created, r.step_count FROM {IDS} {JOIN} flowengine_run r ON r.id = w.value "
    "WHERE r.parent_run_id IS NULL ORDER BY r.created, r.id"
)
_COUNT = "SELECT count(*), coalesce(sum(r.step_count), 0) FROM flowengine_run r WHERE {where}"
_FAMILY = (
    "SELECT r.root_run_id, r.id, r.state, r.step_count FROM {IDS} {JOIN} flowengine_run r "
    f"ON r.root_run_id = w.value WHERE r.{RUN_IS_CHILD}"
)
_LOCKED = (
    "SELECT r.id FROM flowengine_run r WHERE r.id IN (SELECT w.value FROM {IDS}) "
    f"AND r.state IN ({quoted(RunState.FINAL)}) AND NOT EXISTS (SELECT 1 "
    f"FROM flowengine_outbox o WHERE o.run_id = r.id AND o.{OUTBOX_IS_DUE}) "
    "ORDER BY r.id{LOCK}{SKIP_LOCKED}"
)
_MARK = (
    "INSERT INTO flowengine_lock (name, owner, until) "
    f"SELECT '{MARKER}' || w.value, '', 0 FROM {{IDS}} WHERE true "
    "ON CONFLICT DO NOTHING RETURNING name"
)
_MARKED = f"SELECT name FROM flowengine_lock WHERE name >= '{MARKER}' AND name < 'purge;' LIMIT %s"
_REMOVE_RUNS = "DELETE FROM flowengine_run WHERE id IN (SELECT w.value FROM {IDS}) RETURNING id"
_PORTION = (
    "DELETE FROM {table} WHERE {ROW_IDS} (SELECT t.{ROW_ID} FROM {{IDS}} {{JOIN}} {table} t "
    "ON t.run_id = w.value LIMIT %s){ROW_END} RETURNING 1"
)
#: Timers have no index by run; their ids begin like that of their run.
_TIMERS = (
    "DELETE FROM flowengine_timer WHERE id IN (SELECT t.id FROM {IDS} {JOIN} flowengine_timer t "
    f"ON t.id >= substr(w.value, 1, {ID_PREFIX}) "
    f"AND t.id < substr(w.value, 1, {ID_PREFIX}) || 'g' "
    "WHERE t.run_id = w.value LIMIT %s) RETURNING 1"
)
_TABLES = (
    *("task", "step", "event", "history", "fact", "join", "label", "outbox"),
    *("exchange", "log"),
)
_FEED_TABLES = ("unnumbered", "feed")
_HASHES = (
    "SELECT DISTINCT f.hash FROM {IDS} {JOIN} flowengine_reference f ON f.run_id = w.value LIMIT %s"
)
_REFERENCES = (
    "DELETE FROM flowengine_reference WHERE run_id IN (SELECT w.value FROM {IDS}) RETURNING 1"
)
_PAYLOADS = (
    "DELETE FROM flowengine_payload WHERE hash IN (SELECT w.value FROM {IDS}) AND NOT EXISTS "
    "(SELECT 1 FROM flowengine_reference f WHERE f.hash = flowengine_payload.hash) RETURNING 1"
)
_UNMARK = (
    f"DELETE FROM flowengine_lock WHERE name IN (SELECT '{MARKER}' || w.value FROM {{IDS}}) "
    "RETURNING name"
)
_PROGRAMS = (
    "DELETE FROM flowengine_program WHERE created < %s AND hash NOT IN "
    "(SELECT r.program_hash FROM flowengine_run r) AND hash NOT IN "
    "(SELECT s.program_hash FROM flowengine_schedule s) AND hash NOT IN (SELECT w.program_hash "
    "FROM flowengine_workflow w WHERE w.program_hash IS NOT NULL) RETURNING 1"
)
_EXPIRED = (
    "DELETE FROM flowengine_cache WHERE id IN (SELECT id FROM flowengine_cache "
    "WHERE expires < %s ORDER BY expires LIMIT %s) RETURNING id"
)
_SLOTS = (
    "DELETE FROM flowengine_slot WHERE (until IS NULL OR until <= %s) AND NOT EXISTS (SELECT 1 "
    "FROM flowengine_task t WHERE t.uuid = flowengine_slot.task_id) RETURNING 1"
)
# The last one of each app that has stored its code stays: its runs may wait for longer.
_SERVERS = (
    "DELETE FROM flowengine_server WHERE state IN ({}) AND ping_time < %s AND NOT (definitions IS "
    "NOT NULL AND start_time = (SELECT max(o.start_time) FROM flowengine_server o "
    "WHERE o.app = flowengine_server.app AND o.definitions IS NOT NULL)) RETURNING uuid"
)
_HANDLED = (
    "DELETE FROM flowengine_handled WHERE server_id IN (SELECT w.value FROM {IDS}) RETURNING 1"
)


class Root(NamedTuple):
    """An ended run that no other has started."""

    id: str
    created: int
    step_count: int


class Purge(Part):
    # --- candidates ---

    def roots(self, rule: Mapping[str, Any], after: Root | None, most: int) -> list[Root]:
        """Return the oldest runs that a rule admits, behind `after`.

        They are read by the index of state and creation: a run ends after it was created.
        """
        where, values = _where(rule)
        if after is not None:
            where += _BEHIND
            values |= {"at": after.created, "behind": after.id}
        rows = self._session.rows(_ROOTS.format(where=where), {**values, "most": most})
        return [Root(*row) for row in rows]

    def among(self, run_ids: Sequence[str]) -> list[Root]:
        """Return those of these runs that no other has started, the oldest first."""
        return [Root(*row) for row in self._rows(_CHOSEN, run_ids)]

    def count(self, rule: Mapping[str, Any]) -> tuple[int, int]:
        """Return the number of runs that a rule admits, without child runs, and of their steps."""
        where, values = _where(rule)
        ((runs, steps),) = self._session.rows(_COUNT.format(where=where), values)
        return int(runs), int(steps)

    # --- removal ---

    def remove_runs(self, roots: Sequence[str]) -> tuple[list[str], int]:
        """Remove the rows of these runs and their child runs; return their ids and their steps.

        A run that is locked, has been opened again, has a child run that has not ended, or an
        outcome that is still to be delivered, stays.
        """
        family: dict[str, list[str]] = {root: [root] for root in roots}
        steps: dict[str, int] = {}
        for root, run_id, state, step_count in self._rows(_FAMILY, roots):
            family[root].append(run_id)
            steps[run_id] = step_count
            if state not in RunState.FINAL:
                family[root].append("")  # no run has this id, so the family is not whole
        locked = {row[0] for row in self._rows(_LOCKED, {i for f in family.values() for i in f})}
        found = [i for members in family.values() if locked.issuperset(members) for i in members]
        if found:
            self._rows(_MARK, found)
            self._rows(_REMOVE_RUNS, found)
        return found, sum(steps.get(run_id, 0) for run_id in found)

    def mark(self, run_ids: Sequence[str]) -> None:
        """Mark runs whose own row is gone: their other rows are to be removed."""
        self._rows(_MARK, run_ids)

    def marked(self, most: int) -> list[str]:
        """Return runs whose rows are not all removed."""
        return [row[0].removeprefix(MARKER) for row in self._session.rows(_MARKED, (most,))]

    def remove_rows(self, run_ids: Collection[str], most: int) -> int:
        """Remove up to `most` rows of removed runs in each table; return how many were removed."""
        removed = 0
        wanted = json.dumps(sorted(run_ids))
        timers = in_dialect(_TIMERS, self._dialect)
        removed += len(self._session.rows(timers, (wanted, most)))
        for table in (*_TABLES, *_FEED_TABLES):
            if table == _FEED_TABLES[0] and self._session.feed.is_used():
                # A reader that found a run before it was removed may be numbering its commits. One
                # that begins later does not find the run. Last: other readers wait for this lock.
                self._session.feed.lock()
            query = in_dialect(
                _portion(f"flowengine_{table}", self._session.dialect), self._dialect
            )
            removed += len(self._session.rows(query, (wanted, most)))
        return removed

    def remove_values(self, run_ids: Collection[str], most: int) -> int | None:
        """Remove the large values that only these runs had, and the markers of the runs.

        Invariant: a commit writes a value and its reference in one statement. So while references
        are locked against writers, a value without one is not about to get one. Returns None if
        the lock was not granted at once, or these runs have more than `most` values: call again.
        """
        if not self._lock_references():
            return None
        hashes = [row[0] for row in self._rows(_HASHES, run_ids, most)]
        if not hashes:
            self._rows(_UNMARK, run_ids)
            return 0
        if len(hashes) == most and len(run_ids) > 1:
            return None
        self._rows(_REFERENCES, run_ids)
        removed = len(self._rows(_PAYLOADS, hashes))
        self._rows(_UNMARK, run_ids)
        return removed

    def remove_programs(self, before: int) -> int:
        """Remove programs without run, schedule and workflow that nobody used since `before`."""
        return len(self._session.rows(_PROGRAMS, (before,)))

    def remove_slots(self, now: int) -> None:
        """Remove the slots of limits whose tasks are removed."""
        self._session.rows(_SLOTS, (now,))

    def remove_cached(self, before: int, most: int) -> list[str]:
        """Remove results of the cache that expired before that time; return their ids.

        They are marked like runs: their large values are to be removed.
        """
        found = [row[0] for row in self._session.rows(_EXPIRED, (before, most))]
        if found:
            self._rows(_MARK, found)
        return found

    def remove_servers(self, states: Iterable[str], before: int) -> list[str]:
        """Remove the rows of servers that ended before that time; return their ids.

        The last server of each app that has stored the code of its facets stays.
        """
        query = _SERVERS.format(quoted(states))
        found = [row[0] for row in self._session.rows(query, (before,))]
        if found:
            self._rows(_HANDLED, found)
        return found

    def _lock_references(self) -> bool:
        """Lock the references against writers; False if somebody writes one now."""
        if not self._dialect.LOCK_REFERENCES:
            return True
        try:
            with self._session.connection.begin_nested():
                self._session.execute(text(self._dialect.LOCK_REFERENCES))
        except OperationalError as problem:
            if getattr(problem.orig, "sqlstate", "") != _NOT_AVAILABLE:
                raise
            return False
        return True

    @property
    def _dialect(self) -> Any:
        return self._session.dialect

    def _rows(self, template: str, ids: Iterable[str], *more: Any) -> list[tuple[Any, ...]]:
        query = in_dialect(template, self._dialect)
        return self._session.rows(query, (json.dumps(sorted(ids)), *more))


def _portion(table: str, dialect: Any) -> str:
    return _PORTION.format(
        table=table, ROW_ID=dialect.ROW_ID, ROW_IDS=dialect.ROW_IDS, ROW_END=dialect.ROW_END
    )


def _where(rule: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    where, values = _WHERE, dict(rule)
    # Two partial indexes have the runs of agents and those of everybody else.
    where += f" AND r.{RUN_IS_OF_AGENT if values.pop('of_agents', False) else RUN_IS_LISTED}"
    if values.get("tenant") is not None:
        where += " AND r.tenant = %(tenant)s"
    return where, values

"""Schedules and their ticks. In a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flowengine.store.parts import Part
from flowengine.store.schedule_tables import SCHEDULE_IS_DUE


class ScheduleRecord(NamedTuple):
    """A stored schedule."""

    tenant: str
    name: str
    workflow: str
    program_hash: str
    definition: str
    source: str
    state: str
    next_tick: int | None
    due: int | None
    actor: str | None
    reason: str | None
    error: str | None
    created: int
    updated: int


class TickRecord(NamedTuple):
    """The outcome of a tick, or of several that have no run."""

    tenant: str
    schedule: str
    nominal: int
    outcome: str
    last: int | None
    tick_count: int | None
    reason: str | None
    actor: str | None
    run_id: str | None
    created: int


_COLUMNS = ", ".join(ScheduleRecord._fields)
_MARKS = ", ".join(["%s"] * len(ScheduleRecord._fields))
_CHANGED = [name for name in ScheduleRecord._fields if name not in ("tenant", "name", "created")]
_SELECT = f"SELECT {_COLUMNS} FROM flowengine_schedule"
_SELECT_WITH_CLOSING = (
    f"SELECT {_COLUMNS}, EXISTS (SELECT 1 FROM flowengine_closed c "
    "WHERE c.workflow = flowengine_schedule.workflow) FROM flowengine_schedule"
)
_DUE = (
    f"SELECT tenant, name, due FROM flowengine_schedule WHERE {SCHEDULE_IS_DUE} AND due <= %s "
    "ORDER BY due LIMIT %s"
)
_ADD = (
    f"INSERT INTO flowengine_schedule ({_COLUMNS}) VALUES ({_MARKS}) "
    "ON CONFLICT DO NOTHING RETURNING name"
)
_PUT = (
    f"UPDATE flowengine_schedule SET {', '.join(f'{name} = %s' for name in _CHANGED)} "
    "WHERE tenant = %s AND name = %s RETURNING name"
)
# The guard: of two processes that take the same tick, the second finds another due time.
_MOVE = (
    "UPDATE flowengine_schedule SET next_tick = %s, due = %s, state = %s, error = %s, updated = %s "
    "WHERE tenant = %s AND name = %s AND due = %s RETURNING name"
)
_LIST = f"{_SELECT} WHERE tenant = %s AND name > %s ORDER BY name LIMIT %s"
_IN_STATE = f"{_SELECT} WHERE state = %s ORDER BY tenant, name"
_NAMES = "SELECT name FROM flowengine_schedule WHERE tenant = %s ORDER BY name LIMIT %s"
_REMOVE = "DELETE FROM flowengine_schedule WHERE tenant = %s AND name = %s RETURNING name"
_TICK_COLUMNS = ", ".join(TickRecord._fields)
_TICK_MARKS = f"({', '.join(['%s'] * len(TickRecord._fields))})"
_TICKS = (
    f"SELECT {_TICK_COLUMNS} FROM flowengine_tick WHERE tenant = %s AND schedule = %s "
    "AND nominal >= %s AND nominal <= %s ORDER BY nominal DESC, outcome LIMIT %s"
)
_LAST_TICK = (
    f"SELECT {_TICK_COLUMNS} FROM flowengine_tick WHERE tenant = %s AND schedule = %s "
    "AND nominal < %s ORDER BY nominal DESC, outcome LIMIT 1"
)
_EXTEND = (
    "UPDATE flowengine_tick SET last = %s, tick_count = %s, created = %s WHERE tenant = %s "
    "AND schedule = %s AND nominal = %s AND outcome = %s RETURNING nominal"
)
_REMOVE_TICKS = "DELETE FROM flowengine_tick WHERE tenant = %s AND schedule = %s RETURNING nominal"
# Row by row of the key: a statement with a limit needs a subquery on both databases.
_REMOVE_OLD = (
    "DELETE FROM flowengine_tick WHERE (tenant, schedule, nominal, outcome) IN (SELECT tenant, "
    "schedule, nominal, outcome FROM flowengine_tick WHERE created < %s ORDER BY created LIMIT %s) "
    "RETURNING nominal"
)
_TICKS_PER_STATEMENT = 50


class Schedules(Part):
    def due(self, now: int, most: int) -> list[tuple[str, str, int]]:
        """Return tenant, name and due time of schedules that are due, the oldest first."""
        return [(row[0], row[1], row[2]) for row in self._session.rows(_DUE, (now, most))]

    def workflows(self) -> list[str]:
        """Return the names of the workflows that have schedules."""
        text = "SELECT DISTINCT workflow FROM flowengine_schedule"
        return [row[0] for row in self._session.rows(text, ())]

    def lock_due_with_closing(
        self, tenant: str, name: str, due: int
    ) -> tuple[ScheduleRecord, bool] | None:
        """Lock a schedule as `lock_due`; also return whether its workflow is closed."""
        dialect = self._session.dialect
        text = (
            f"{_SELECT_WITH_CLOSING} WHERE tenant = %s AND name = %s AND due = %s"
            f"{dialect.LOCK}{dialect.SKIP_LOCKED}"
        )
        rows = self._session.rows(text, (tenant, name, due))
        return (ScheduleRecord(*rows[0][:-1]), bool(rows[0][-1])) if rows else None

    def lock_due(self, tenant: str, name: str, due: int) -> ScheduleRecord | None:
        """Lock a schedule if it still has this due time and no other transaction has locked it."""
        dialect = self._session.dialect
        text = (
            f"{_SELECT} WHERE tenant = %s AND name = %s AND due = %s"
            f"{dialect.LOCK}{dialect.SKIP_LOCKED}"
        )
        rows = self._session.rows(text, (tenant, name, due))
        return ScheduleRecord(*rows[0]) if rows else None

    def get(self, tenant: str, name: str, *, lock: bool = False) -> ScheduleRecord | None:
        text = f"{_SELECT} WHERE tenant = %s AND name = %s"
        rows = self._session.rows(
            f"{text}{self._session.dialect.LOCK}" if lock else text, (tenant, name)
        )
        return ScheduleRecord(*rows[0]) if rows else None

    def add(self, record: ScheduleRecord) -> bool:
        """Store a new schedule; False if there is one of that name."""
        return bool(self._session.rows(_ADD, tuple(record)))

    def put(self, record: ScheduleRecord) -> None:
        """Store a changed schedule, which the caller has locked."""
        values = tuple(getattr(record, name) for name in _CHANGED)
        self._session.rows(_PUT, (*values, record.tenant, record.name))

    def move(self, before: ScheduleRecord, after: ScheduleRecord) -> bool:
        """Store the next tick of a schedule, if its due time is still the old one."""
        values = (after.next_tick, after.due, after.state, after.error, after.updated)
        return bool(self._session.rows(_MOVE, (*values, before.tenant, before.name, before.due)))

    def page(self, tenant: str, after: str, most: int) -> list[ScheduleRecord]:
        rows = self._session.rows(_LIST, (tenant, after, most))
        return [ScheduleRecord(*row) for row in rows]

    def in_state(self, state: str) -> list[ScheduleRecord]:
        """Return the schedules of all tenants in a state."""
        return [ScheduleRecord(*row) for row in self._session.rows(_IN_STATE, (state,))]

    def of_source(
        self, source: str, workflows: Sequence[str] | None = None
    ) -> list[ScheduleRecord]:
        """Return the schedules of a source, or those of some of its workflows; of all tenants."""
        text, values = f"{_SELECT} WHERE source = %s", (source, *(workflows or ()))
        if workflows is not None:
            text += f" AND workflow IN ({', '.join(['%s'] * len(workflows)) or 'NULL'})"
        return [ScheduleRecord(*row) for row in self._session.rows(text, values)]

    def of_workflow(self, workflow: str) -> list[ScheduleRecord]:
        """Return the schedules of a workflow, by tenant and name."""
        text = f"{_SELECT} WHERE workflow = %s ORDER BY tenant, name"
        return [ScheduleRecord(*row) for row in self._session.rows(text, (workflow,))]

    def names(self, tenant: str, most: int) -> list[str]:
        return [row[0] for row in self._session.rows(_NAMES, (tenant, most))]

    def remove(self, tenant: str, name: str) -> bool:
        """Remove a schedule and its ticks; its runs stay."""
        self._session.rows(_REMOVE_TICKS, (tenant, name))
        return bool(self._session.rows(_REMOVE, (tenant, name)))

    # --- ticks ---

    def add_ticks(self, ticks: Sequence[TickRecord]) -> int:
        """Store outcomes of ticks; return how many were new."""
        added = 0
        for start in range(0, len(ticks), _TICKS_PER_STATEMENT):
            part = ticks[start : start + _TICKS_PER_STATEMENT]
            text = (
                f"INSERT INTO flowengine_tick ({_TICK_COLUMNS}) VALUES "
                f"{', '.join([_TICK_MARKS] * len(part))} ON CONFLICT DO NOTHING RETURNING nominal"
            )
            added += len(self._session.rows(text, tuple(value for tick in part for value in tick)))
        return added

    def last_tick(self, tenant: str, schedule: str, before: int) -> TickRecord | None:
        """Return the newest outcome of a tick before that time."""
        rows = self._session.rows(_LAST_TICK, (tenant, schedule, before))
        return TickRecord(*rows[0]) if rows else None

    def extend_tick(self, tick: TickRecord, last: int, count: int | None, now: int) -> None:
        """Let the row of skipped ticks tell later ones, too. Its age is that of the last ones."""
        key = (tick.tenant, tick.schedule, tick.nominal, tick.outcome)
        self._session.rows(_EXTEND, (last, count, now, *key))

    def remove_ticks(self, before: int, most: int) -> int:
        """Remove outcomes of ticks that were stored before that time; return how many."""
        return len(self._session.rows(_REMOVE_OLD, (before, most)))

    def ticks(
        self, tenant: str, schedule: str, first: int, last: int, most: int
    ) -> list[TickRecord]:
        """Return outcomes of ticks from `first` to `last`, the newest first."""
        rows = self._session.rows(_TICKS, (tenant, schedule, first, last, most))
        return [TickRecord(*row) for row in rows]

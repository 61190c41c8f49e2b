"""The heads of agents: locked, and updated under their guard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowengine.store.agent_tables import (
    HEAD_IS_SUSPENDED,
    INBOX_IS_DUE,
    INBOX_IS_QUEUED,
    TURN_IS_WAITED_FOR,
)
from flowengine.store.backend import in_dialect
from flowengine.store.parts import Part
from flowengine.turns.records import Head

_COLUMNS = (
    *("project_id", "agent_id", "status", "active_agent_turn_id", "turn_epoch"),
    *("active_recursion_depth", "trace_id", "parent_step_id", "profile_box_id", "context_box_id"),
    *("output_box_id", "waiting_tool_count", "resume_deadline", "model_run_id", "entered"),
    *("memory_box_id", "event_count"),
)
_READ = (
    f"SELECT {', '.join(_COLUMNS)} FROM flowengine_agent_state_head "
    "WHERE project_id = %s AND agent_id = %s"
)
_CREATE = (
    "INSERT INTO flowengine_agent_state_head (project_id, agent_id, status, turn_epoch, "
    "active_recursion_depth, trace_id, parent_step_id, waiting_tool_count, entered, event_count, "
    "updated_at) VALUES (%s, %s, 'idle', 0, 0, '', '', 0, 0, 0, %s) ON CONFLICT DO NOTHING "
    "RETURNING agent_id"
)
# The guard: whoever has an older epoch or another turn changes nothing.
_SAVE = (
    f"UPDATE flowengine_agent_state_head SET {', '.join(f'{c} = %s' for c in _COLUMNS[2:])}, "
    "expecting_correlation_id = NULL, updated_at = %s "
    "WHERE project_id = %s AND agent_id = %s AND turn_epoch = %s "
    "AND COALESCE(active_agent_turn_id, '') = %s RETURNING agent_id"
)
_EXPIRED = (
    "SELECT project_id, agent_id FROM flowengine_agent_state_head "
    f"WHERE {HEAD_IS_SUSPENDED} AND resume_deadline <= %s ORDER BY resume_deadline LIMIT %s"
)
# One statement, and four looks into partial indexes: for those who have no agents too.
_HAS_WORK = (
    f"SELECT EXISTS (SELECT 1 FROM flowengine_agent_inbox WHERE {INBOX_IS_DUE} "
    f"AND next_retry_at <= %s) OR EXISTS (SELECT 1 FROM flowengine_agent_inbox "
    f"WHERE {INBOX_IS_QUEUED}) OR EXISTS (SELECT 1 FROM flowengine_agent_state_head "
    f"WHERE {HEAD_IS_SUSPENDED} AND resume_deadline <= %s) "
    f"OR EXISTS (SELECT 1 FROM flowengine_agent_turn WHERE {TURN_IS_WAITED_FOR})"
)


class AgentHeads(Part):
    """In a transaction."""

    def create(self, project: str, agent: str, now: int) -> None:
        """Add the head of an agent, idle, if it has none."""
        self._session.rows(_CREATE, (project, agent, now))

    def get(self, project: str, agent: str) -> Head | None:
        return _head(self._session.rows(_READ, (project, agent)))

    def lock(self, project: str, agent: str, *, wait: bool = True) -> Head | None:
        """Lock and return a head; None: there is none, or without `wait` another has locked it."""
        lock = "{LOCK}" if wait else "{LOCK}{SKIP_LOCKED}"
        text = in_dialect(_READ + lock, self._dialect)
        return _head(self._session.rows(text, (project, agent)))

    def save(self, head: Head, before: tuple[int, str | None], now: int) -> bool:
        """Write a head; False: the guard refused it, and nothing may follow."""
        values = _values(head)
        guard = (*values[:2], before[0], before[1] or "")
        return bool(self._session.rows(_SAVE, (*values[2:], now, *guard)))

    def has_work(self, before: int, now: int) -> bool:
        """Whether recovery has anything to look at."""
        return bool(self._session.rows(_HAS_WORK, (before, now))[0][0])

    def expired(self, now: int, limit: int) -> list[tuple[str, str]]:
        """Return the agents whose calls, or whose turns, are past their deadline."""
        rows = self._session.rows(_EXPIRED, (now, limit))
        return [(project, agent) for project, agent in rows]

    @property
    def _dialect(self) -> Any:
        return self._session.dialect


def _head(rows: Sequence[Sequence[Any]]) -> Head | None:
    return _of(rows[0]) if rows else None


def _of(row: Sequence[Any]) -> Head:
    return Head(*row)


def _values(head: Head) -> tuple[Any, ...]:
    return (
        *(head.project, head.agent, head.status, head.turn_id, head.epoch, head.depth),
        *(head.trace_id, head.parent_step_id, head.profile_box_id, head.context_box_id),
        *(head.output_box_id, head.waiting, head.resume_deadline, head.run_id, head.entered),
        *(head.memory_box_id, head.events),
    )

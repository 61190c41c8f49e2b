"""The heads of agents: locked, and updated under their guard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from flowengine.store.agent_inbox import Message, read_message
from flowengine.store.agent_rows import MESSAGE_COLUMNS, TURN_COLUMNS
from flowengine.store.agent_tables import (
    HEAD_IS_SUSPENDED,
    INBOX_IS_DUE,
    INBOX_IS_QUEUED,
    TURN_IS_WAITED_FOR,
)
from flowengine.store.backend import in_dialect
from flowengine.store.parts import Part
from flowengine.turns.records import Head, Turn

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
    "updated_at) VALUES (%s, %s, 'idle', 0, 0, '', '', 0, 0, 0, %s) "
)
# An update that changes nothing locks the row, and returns it.
_CREATE_OR_LOCK = (
    f"{_CREATE} ON CONFLICT (project_id, agent_id) DO UPDATE "
    "SET updated_at = flowengine_agent_state_head.updated_at "
    f"RETURNING {', '.join(_COLUMNS)}"
)
# The guard: whoever has an older epoch or another turn changes nothing.
_SAVE = (
    f"UPDATE flowengine_agent_state_head SET {', '.join(f'{c} = %s' for c in _COLUMNS[2:])}, "
    "updated_at = %s "
    "WHERE project_id = %s AND agent_id = %s AND turn_epoch = %s "
    "AND COALESCE(active_agent_turn_id, '') = %s RETURNING agent_id"
)
_TURN = ", ".join(f"t.{column}" for column in TURN_COLUMNS)
_MESSAGE = ", ".join(f"i.{column}" for column in MESSAGE_COLUMNS)
_ENTERING = (
    "WITH w(at, agent, turn, run) AS (VALUES {values}) "
    f"SELECT {', '.join(f'h.{c}' for c in _COLUMNS)}, {_TURN}, t.started_at, t.recoveries, "
    f"{_MESSAGE}, w.at FROM w {{JOIN}} flowengine_run r ON r.id = w.run "
    "JOIN flowengine_agent_state_head h ON h.project_id = r.tenant AND h.agent_id = w.agent "
    "JOIN flowengine_agent_turn t ON t.project_id = r.tenant AND t.agent_turn_id = w.turn "
    "LEFT JOIN flowengine_agent_inbox i "
    "ON i.project_id || '' = r.tenant AND i.agent_turn_id = t.agent_turn_id "
    "AND i.message_type IN ('turn', 'ui_action')"
)
_EXPIRED = (
    "SELECT project_id, agent_id FROM flowengine_agent_state_head "
    f"WHERE {HEAD_IS_SUSPENDED} AND resume_deadline <= %s ORDER BY resume_deadline LIMIT %s"
)
# One statement, four lookups in partial indexes: each recovery pass runs it, also without agents.
_HAS_WORK = (
    f"SELECT EXISTS (SELECT 1 FROM flowengine_agent_inbox WHERE {INBOX_IS_DUE} "
    f"AND next_retry_at <= %s) OR EXISTS (SELECT 1 FROM flowengine_agent_inbox "
    f"WHERE {INBOX_IS_QUEUED}) OR EXISTS (SELECT 1 FROM flowengine_agent_state_head "
    f"WHERE {HEAD_IS_SUSPENDED} AND resume_deadline <= %s) "
    f"OR EXISTS (SELECT 1 FROM flowengine_agent_turn WHERE {TURN_IS_WAITED_FOR})"
)


class Entering(NamedTuple):
    """The rows that a try of a model call needs to enter its turn."""

    head: Head
    turn: Turn
    started: int | None  #: when the turn's first model call was entered
    recoveries: int
    message: Message | None  #: that began the turn


class AgentHeads(Part):
    """In a transaction."""

    def create_or_lock(self, project: str, agent: str, now: int) -> Head:
        """Lock and return the head of an agent; one that has none gets one, which is idle."""
        (row,) = self._session.rows(_CREATE_OR_LOCK, (project, agent, now))
        return _of(row)

    def get(self, project: str, agent: str) -> Head | None:
        return _head(self._session.rows(_READ, (project, agent)))

    def lock(self, project: str, agent: str, *, wait: bool = True) -> Head | None:
        """Lock and return a head; None: there is none, or without `wait` another has locked it."""
        lock = "{LOCK}" if wait else "{LOCK}{SKIP_LOCKED}"
        text = in_dialect(_READ + lock, self._dialect)
        return _head(self._session.rows(text, (project, agent)))

    def entering(self, calls: Sequence[tuple[str, str, str]]) -> list[tuple[int, Entering]]:
        """Return the rows around model calls, without a lock, each with the place of its call.

        A call is given by its agent, turn and run; it is left out if its turn was removed.
        """
        values = ", ".join(f"({at}, %s, %s, %s)" for at in range(len(calls)))
        text = in_dialect(_ENTERING.replace("{values}", values), self._dialect)
        rows = self._session.rows(text, [value for call in calls for value in call])
        return [(row[-1], _entering(row[:-1])) for row in rows]

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


def _entering(row: Sequence[Any]) -> Entering:
    heads, turns = len(_COLUMNS), len(_COLUMNS) + len(TURN_COLUMNS)
    message = None if row[turns + 2] is None else read_message(row[turns + 2 :])
    started, recoveries = row[turns : turns + 2]
    return Entering(_of(row[:heads]), Turn(*row[heads:turns]), started, recoveries, message)


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

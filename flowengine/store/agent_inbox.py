"""The inboxes of agents: turns that wait, reports, and stops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from flowengine.program.nodes import Json
from flowengine.store import codec
from flowengine.store.agent_tables import INBOX_IS_DUE, INBOX_IS_QUEUED
from flowengine.store.parts import Part
from flowengine.turns.states import InboxState, check_inbox_transition

_COLUMNS = (
    *("project_id", "inbox_id", "agent_id", "message_type", "correlation_id", "agent_turn_id"),
    *("turn_epoch", "payload", "status", "retry_count", "next_retry_at", "created_at"),
)
_SELECTED = f"SELECT {', '.join(_COLUMNS)} FROM flowengine_agent_inbox"
_ADD = (
    f"INSERT INTO flowengine_agent_inbox ({', '.join(_COLUMNS)}, context_headers) "
    f"VALUES ({', '.join(['%s'] * (len(_COLUMNS) + 1))}) ON CONFLICT DO NOTHING RETURNING inbox_id"
)
#: A turn is consumed by the worker that enters it, and waits for one as long as it takes.
_IS_REPORT = "message_type NOT IN ('turn', 'ui_action')"
_DUE = (
    f"{_SELECTED} WHERE project_id = %s AND agent_id = %s AND {INBOX_IS_DUE} "
    f"AND next_retry_at <= %s AND {_IS_REPORT} "
    "ORDER BY next_retry_at, created_at, inbox_id LIMIT %s"
)
_QUEUED = (
    f"{_SELECTED} WHERE project_id = %s AND agent_id = %s AND {INBOX_IS_QUEUED} "
    "ORDER BY created_at, inbox_id LIMIT 1"
)
_LAST_QUEUED = (
    "SELECT max(created_at) FROM flowengine_agent_inbox "
    f"WHERE project_id = %s AND agent_id = %s AND {INBOX_IS_QUEUED}"
)
_OF_TURN = (
    f"{_SELECTED} WHERE project_id = %s AND agent_turn_id = %s AND message_type IN "
    "('turn', 'ui_action')"
)
_MARK = (
    "UPDATE flowengine_agent_inbox SET status = %s, turn_epoch = %s, retry_count = %s, "
    "next_retry_at = %s, last_error = %s, defer_reason = %s, processed_at = %s "
    "WHERE project_id = %s AND inbox_id = %s AND status = %s RETURNING inbox_id"
)
# Loose: one row per agent, of those whose messages have been due for a while.
_WAITING = (
    f"SELECT DISTINCT project_id, agent_id FROM (SELECT project_id, agent_id "
    f"FROM flowengine_agent_inbox WHERE {INBOX_IS_DUE} AND next_retry_at <= %s "
    f"AND {_IS_REPORT} ORDER BY next_retry_at LIMIT %s) w"
)
_STRANDED = (
    "SELECT DISTINCT i.project_id, i.agent_id FROM flowengine_agent_inbox i "
    "JOIN flowengine_agent_state_head h ON h.project_id = i.project_id "
    "AND h.agent_id = i.agent_id WHERE i.status = 'queued' AND h.status = 'idle' LIMIT %s"
)


class Message(NamedTuple):
    """A message in an agent's inbox."""

    project: str
    id: str
    agent: str
    type: str
    correlation_id: str
    turn_id: str
    epoch: int
    payload: Json
    status: str
    retries: int
    due: int
    created: int


class AgentInbox(Part):
    """In a transaction."""

    def add(self, message: Message, headers: Json = None) -> bool:
        """Add a message; False: one with its type and correlation id is there."""
        values = message._replace(payload=codec.dump(message.payload))
        written = None if headers is None else codec.dump(headers)
        return bool(self._session.rows(_ADD, (*values, written)))

    def due(self, project: str, agent: str, now: int, limit: int) -> Sequence[Message]:
        """Return due messages in their order."""
        return [_message(row) for row in self._session.rows(_DUE, (project, agent, now, limit))]

    def next_queued(self, project: str, agent: str) -> Message | None:
        """Return the oldest turn that waits. The caller has locked the head."""
        return _first(self._session.rows(_QUEUED, (project, agent)))

    def last_queued(self, project: str, agent: str) -> int:
        return int(self._session.rows(_LAST_QUEUED, (project, agent))[0][0] or 0)

    def of_turn(self, project: str, turn_id: str) -> Message | None:
        """Return the message that began a turn."""
        return _first(self._session.rows(_OF_TURN, (project, turn_id)))

    def mark(
        self,
        message: Message,
        status: str,
        now: int,
        *,
        epoch: int | None = None,
        due: int | None = None,
        error: str | None = None,
    ) -> bool:
        """Move a message on; False: somebody else has."""
        check_inbox_transition(message.status, status)
        retries = message.retries + (status == InboxState.DEFERRED)
        values = (
            *(status, message.epoch if epoch is None else epoch, retries),
            *(message.due if due is None else due, error),
            error if status == InboxState.DEFERRED else None,
            now if status in InboxState.FINAL else None,
        )
        key = (message.project, message.id, message.status)
        return bool(self._session.rows(_MARK, (*values, *key)))

    def waiting(self, before: int, limit: int) -> list[tuple[str, str]]:
        """Return agents with messages that have been due since `before`."""
        return [(p, a) for p, a in self._session.rows(_WAITING, (before, limit))]

    def stranded(self, limit: int) -> list[tuple[str, str]]:
        """Return idle agents with a turn that waits."""
        return [(p, a) for p, a in self._session.rows(_STRANDED, (limit,))]


def _message(row: Sequence[Any]) -> Message:
    found = Message(*row)
    return found._replace(payload=codec.load(found.payload))


def _first(rows: Sequence[Sequence[Any]]) -> Message | None:
    return _message(rows[0]) if rows else None

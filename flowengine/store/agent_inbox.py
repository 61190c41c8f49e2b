"""The inboxes of agents: turns that wait, reports, and stops."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from flowengine.program.nodes import Json
from flowengine.store import codec
from flowengine.store.agent_rows import MESSAGE_COLUMNS, TURN_COLUMNS, MarkedMessage
from flowengine.store.agent_tables import INBOX_IS_DUE, INBOX_IS_QUEUED
from flowengine.store.backend import in_dialect
from flowengine.store.parts import Part
from flowengine.store.records import Row
from flowengine.turns.records import Turn
from flowengine.turns.states import InboxState, check_inbox_transition

_SELECTED = f"SELECT {', '.join(MESSAGE_COLUMNS)} FROM flowengine_agent_inbox"
_ADD = (
    f"INSERT INTO flowengine_agent_inbox ({', '.join(MESSAGE_COLUMNS)}, context_headers) "
    f"VALUES ({', '.join(['%s'] * (len(MESSAGE_COLUMNS) + 1))}) "
    "ON CONFLICT DO NOTHING RETURNING inbox_id"
)
_NOTE = (
    "UPDATE flowengine_agent_state_head SET expecting_correlation_id = %s "
    "WHERE project_id = %s AND agent_id = %s AND active_agent_turn_id = %s RETURNING agent_id"
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
# `|| ''`: by the index of turns, never by reading all messages of the project.
_OF_ONE_TURN = (
    "agent_turn_id = %(turn)s AND project_id || '' = %(project)s "
    "AND message_type IN ('turn', 'ui_action')"
)
_NEXT_TURN = (
    f"SELECT {', '.join(f'i.{c}' for c in MESSAGE_COLUMNS)}, "
    "(SELECT COALESCE(max(position) + 1, 0) FROM flowengine_box_card b "
    "WHERE b.project_id = i.project_id AND b.box_id = COALESCE(%s, t.output_box_id)), "
    f"{', '.join(f't.{c}' for c in TURN_COLUMNS)} FROM flowengine_agent_inbox i "
    "LEFT JOIN flowengine_agent_turn t ON t.project_id = i.project_id "
    "AND t.agent_turn_id = i.agent_turn_id AND t.agent_id = i.agent_id "
    "WHERE i.project_id = %s AND i.agent_id = %s AND i.status = 'queued' "
    "ORDER BY i.created_at, i.inbox_id LIMIT 1"
)
# The turn that was enqueued before: by a step, whose id is known, or with the same key.
_BEFORE = (
    "SELECT q.last, i.agent_turn_id, i.turn_epoch FROM (SELECT max(created_at) AS last "
    "FROM flowengine_agent_inbox WHERE project_id = %(project)s AND agent_id = %(agent)s "
    f"AND {INBOX_IS_QUEUED}) q LEFT JOIN flowengine_agent_inbox i ON i.{{}}"
)
_BEFORE_ANY = (
    "SELECT max(created_at), NULL, NULL FROM flowengine_agent_inbox "
    f"WHERE project_id = %(project)s AND agent_id = %(agent)s AND {INBOX_IS_QUEUED}"
)
_BEFORE_STEP = _BEFORE.format(_OF_ONE_TURN.replace("AND ", "AND i."))
_BEFORE_KEY = _BEFORE.format(
    "project_id = %(project)s AND i.agent_id = %(agent)s "
    "AND i.message_type IN ('turn', 'ui_action') AND i.correlation_id = %(key)s"
)
_OF_TURN = f"{_SELECTED} WHERE {_OF_ONE_TURN}"
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


_WITH_MESSAGES = (
    "SELECT w.value FROM {IDS} WHERE EXISTS (SELECT 1 FROM flowengine_agent_inbox "
    f"WHERE project_id = %s AND agent_id = w.value AND {INBOX_IS_QUEUED}) OR EXISTS (SELECT 1 "
    "FROM flowengine_agent_inbox WHERE project_id = %s AND agent_id = w.value "
    f"AND {INBOX_IS_DUE} AND {_IS_REPORT})"
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


class BeforeEnqueue(NamedTuple):
    last_queued: int  #: when the newest turn that waits was enqueued
    same: tuple[str, int] | None  #: the same turn, which was enqueued before, and its epoch


class AgentInbox(Part):
    """In a transaction."""

    def add(self, message: Message) -> bool:
        """Add a message; False: one with its type and correlation id is there.

        Lock order: the head first. It is noted there that a message for its active turn waits, so
        that no optimistic commit of the turn overtakes it.
        """
        about = (message.correlation_id, message.project, message.agent, message.turn_id)
        self._session.rows(_NOTE, about)
        return bool(self._session.rows(_ADD, new_message(message)))

    def due(self, project: str, agent: str, now: int, limit: int) -> Sequence[Message]:
        """Return due messages in their order."""
        return [read_message(row) for row in self._session.rows(_DUE, (project, agent, now, limit))]

    def next_queued(self, project: str, agent: str) -> Message | None:
        """Return the oldest turn that waits. The caller has locked the head."""
        return _first(self._session.rows(_QUEUED, (project, agent)))

    def with_messages(self, agents: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return those agents, by project and id, that have a turn that waits, or a report."""
        by_project: dict[str, list[str]] = {}
        for project, agent in agents:
            by_project.setdefault(project, []).append(agent)
        text = in_dialect(_WITH_MESSAGES, self._session.dialect)
        return [
            (project, agent)
            for project, ids in by_project.items()
            for (agent,) in self._session.rows(text, (json.dumps(ids), project, project))
        ]

    def next_turn(
        self, project: str, agent: str, memory_box_id: str | None
    ) -> tuple[Message, Turn | None, int] | None:
        """Return the oldest turn that waits, with its message and the length of its output box.

        That is the box of the agent's memory, if it has any. The caller has locked the head.
        """
        rows = self._session.rows(_NEXT_TURN, (memory_box_id, project, agent))
        if not rows:
            return None
        row, behind = rows[0], len(MESSAGE_COLUMNS)
        turn = None if row[behind + 1] is None else Turn(*row[behind + 1 :])
        return read_message(row[:behind]), turn, row[behind]

    def before_enqueue(
        self, project: str, agent: str, turn_id: str, key: str | None
    ) -> BeforeEnqueue:
        """Return the rows that a new turn has to respect. The caller has locked the head."""
        about = {"project": project, "agent": agent, "turn": turn_id, "key": key}
        text = _BEFORE_ANY if key is None else _BEFORE_KEY
        ((last, same, epoch),) = self._session.rows(_BEFORE_STEP if turn_id else text, about)
        return BeforeEnqueue(last or 0, None if same is None else (same, epoch))

    def of_turn(self, project: str, turn_id: str) -> Message | None:
        """Return the message that began a turn."""
        return _first(self._session.rows(_OF_TURN, {"project": project, "turn": turn_id}))

    def mark(
        self,
        message: Message,
        status: str,
        now: int,
        *,
        due: int | None = None,
        error: str | None = None,
    ) -> bool:
        """Move a message on; False: somebody else has."""
        row = marked(message, status, now, due=due, error=error)
        return bool(self._session.rows(_MARK, (*row[3:], *row[:3])))

    def waiting(self, before: int, limit: int) -> list[tuple[str, str]]:
        """Return agents with messages that have been due since `before`."""
        return [(p, a) for p, a in self._session.rows(_WAITING, (before, limit))]

    def stranded(self, limit: int) -> list[tuple[str, str]]:
        """Return idle agents with a turn that waits."""
        return [(p, a) for p, a in self._session.rows(_STRANDED, (limit,))]


def new_message(message: Message, headers: Json = None) -> Row:
    """Return the row of a new message."""
    values = message._replace(payload=codec.dump(message.payload))
    return (*values, None if headers is None else codec.dump(headers))


def marked(
    message: Message,
    status: str,
    now: int,
    *,
    epoch: int | None = None,
    due: int | None = None,
    error: str | None = None,
) -> MarkedMessage:
    """Return the row of a message that moves on."""
    check_inbox_transition(message.status, status)
    return MarkedMessage(
        *(message.project, message.id, message.status, status),
        message.epoch if epoch is None else epoch,
        message.retries + (status == InboxState.DEFERRED),
        message.due if due is None else due,
        error,
        error if status == InboxState.DEFERRED else None,
        now if status in InboxState.FINAL else None,
    )


def read_message(row: Sequence[Any]) -> Message:
    found = Message(*row)
    return found._replace(payload=codec.load(found.payload))


def _first(rows: Sequence[Sequence[Any]]) -> Message | None:
    return read_message(rows[0]) if rows else None

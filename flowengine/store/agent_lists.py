"""Lists of agents and of turns for readers, and the numbers of metrics.

A page is read through one index, and a limited number of its entries is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from flowengine.store.agent_tables import HEAD_IS_ACTIVE, HEAD_IS_SUSPENDED
from flowengine.store.agent_turns import INFO_COLUMNS, TurnInfo
from flowengine.store.cards import Card
from flowengine.store.parts import Part
from flowengine.store.shown_values import shown_attributes
from flowengine.turns.states import HeadState, TaskStatus, TurnState

#: The states by which turns are filtered: of the turn, or of its end.
TURN_STATES = (TurnState.QUEUED, TurnState.ACTIVE, TurnState.FINISHED, *TaskStatus.ALL)
_OPEN = (TurnState.QUEUED, TurnState.ACTIVE)
_HEAD = (
    *("project_id", "agent_id", "status", "active_agent_turn_id", "turn_epoch"),
    *("waiting_tool_count", "resume_deadline", "model_run_id", "entered", "updated_at"),
)
_HEADS = (
    f"SELECT {', '.join(_HEAD)} FROM flowengine_agent_state_head "
    "WHERE (project_id, agent_id) > (%(last_project)s, %(last_agent)s){filters} "
    "ORDER BY project_id, agent_id LIMIT %(most)s"
)
_ONE_HEAD = (
    f"SELECT {', '.join(_HEAD)} FROM flowengine_agent_state_head "
    "WHERE project_id = %s AND agent_id = %s"
)
_CHILDREN = (
    "SELECT agent_turn_id, agent_id FROM flowengine_agent_turn "
    "WHERE project_id = %s AND parent_turn_id = %s ORDER BY enqueued_at, agent_turn_id LIMIT %s"
)
_TURNS = (
    f"SELECT {', '.join(INFO_COLUMNS)} FROM flowengine_agent_turn "
    "WHERE (enqueued_at, agent_turn_id) < (%(at)s, %(behind)s){filters} "
    "ORDER BY enqueued_at DESC, agent_turn_id DESC LIMIT %(most)s"
)
# A loose index scan: turns are found in every project by the first digits of their ids.
_PROJECTS = (
    "WITH RECURSIVE found(value) AS (SELECT min(project_id) FROM flowengine_agent_turn UNION ALL "
    "SELECT (SELECT min(project_id) FROM flowengine_agent_turn WHERE project_id > found.value) "
    "FROM found WHERE found.value IS NOT NULL) "
)
_WITH_PREFIX = (
    f"{_PROJECTS}SELECT {', '.join(f't.{name}' for name in INFO_COLUMNS)} FROM found "
    "JOIN flowengine_agent_turn t ON t.project_id = found.value "
    "AND t.agent_turn_id >= %(first)s AND t.agent_turn_id < %(last)s{filters} LIMIT 2"
)
# The active turn of an agent, else its newest: in each project that has an agent of the name.
_OF_AGENT = (
    f"{_PROJECTS}SELECT h.project_id, COALESCE(h.active_agent_turn_id, (SELECT t.agent_turn_id "
    "FROM flowengine_agent_turn t WHERE t.project_id = h.project_id AND t.agent_id = h.agent_id "
    "ORDER BY t.enqueued_at DESC LIMIT 1)) FROM found JOIN flowengine_agent_state_head h "
    "ON h.project_id = found.value AND h.agent_id = %(agent)s{filters} LIMIT 2"
)
_CALLS = (
    "SELECT tool_call_id, step_id, tool_name, wait_status, run_id, approval, approved_by, ending, "
    "deadline, created_at, applied_at FROM flowengine_turn_waiting_tools "
    "WHERE project_id = %s AND agent_turn_id = %s ORDER BY created_at, position LIMIT %s"
)
# Cards of the context have no place in the output box, and come first.
_CARDS = (
    "SELECT c.card_id, c.type, c.author, c.agent_turn_id, c.step_id, c.tool_call_id, c.content, "
    "c.created_at, COALESCE(b.position, -1) FROM flowengine_card c "
    "LEFT JOIN flowengine_box_card b ON b.project_id = c.project_id AND b.box_id = %s "
    "AND b.card_id = c.card_id WHERE c.project_id = %s AND c.agent_turn_id = %s "
    "AND c.type <> 'tool.report' ORDER BY COALESCE(b.position, -1), c.created_at LIMIT %s"
)
_BEFORE = (
    "SELECT count(*) FROM flowengine_agent_inbox WHERE project_id = %s AND agent_id = %s "
    "AND status = 'queued' AND created_at < %s"
)
_OPEN_RUNS = (
    "SELECT model_run_id FROM flowengine_agent_state_head "
    f"WHERE {HEAD_IS_ACTIVE} AND model_run_id IS NOT NULL UNION ALL "
    "SELECT run_id FROM flowengine_turn_waiting_tools "
    "WHERE wait_status = 'waiting' AND run_id IS NOT NULL"
)
_DEADLINES = (
    f"SELECT DISTINCT resume_deadline FROM flowengine_agent_state_head WHERE {HEAD_IS_SUSPENDED}"
)
_STATES = (
    "SELECT project_id, status, count(*), min(updated_at) FROM flowengine_agent_state_head "
    f"WHERE {HEAD_IS_ACTIVE}{{filter}} GROUP BY project_id, status ORDER BY project_id, status"
)
_OPEN_TURNS = (
    "SELECT project_id, state, count(*), min(enqueued_at) FROM flowengine_agent_turn "
    "WHERE finished_at IS NULL{filter} GROUP BY project_id, state ORDER BY project_id, state"
)
_ENDED_TURNS = (
    "SELECT project_id, task_status, count(*), min(enqueued_at) FROM flowengine_agent_turn "
    "WHERE finished_at >= %(after)s{filter} GROUP BY project_id, task_status "
    "ORDER BY project_id, task_status"
)


class HeadInfo(NamedTuple):
    """An agent for readers."""

    project: str
    agent: str
    state: str
    turn_id: str | None
    epoch: int
    waiting: int  #: calls whose reports are missing
    deadline: int | None  #: the earliest one of those calls
    model_run_id: str | None
    entered: int
    since: int


class CallInfo(NamedTuple):
    """A call of a tool for readers."""

    id: str
    step_id: str
    tool: str
    state: str
    run_id: str | None
    approval: str
    approved_by: str | None
    ending: str | None
    deadline: int | None
    created: int
    ended: int | None

    @property
    def is_open(self) -> bool:
        return self.state == "waiting"


class TurnPage(NamedTuple):
    turns: list[TurnInfo]
    last: tuple[int, str] | None  #: the last turn that was looked at, if there may be more


class AgentCount(NamedTuple):
    """Agents, or turns, of one project in one state."""

    project: str
    state: str
    number: int
    oldest: int  #: since when the first of them is in it; of turns, when it was enqueued


class AgentLists(Part):
    """In a transaction."""

    def heads(
        self, project: str | None, state: str | None, after: tuple[str, str], limit: int
    ) -> list[HeadInfo]:
        """Return agents behind `after` in the order of their projects and names."""
        values: dict[str, Any] = {"last_project": after[0], "last_agent": after[1], "most": limit}
        filters = ""
        if project is not None:
            filters, values = " AND project_id = %(project)s", {**values, "project": project}
        if state is not None:
            # Active agents are few: the condition lets their partial index be used.
            is_active = f" AND {HEAD_IS_ACTIVE}" if state != HeadState.IDLE else ""
            filters = f"{filters}{is_active} AND status = %(state)s"
            values["state"] = state
        rows = self._session.rows(_HEADS.format(filters=filters), values)
        return [HeadInfo(*row) for row in rows]

    def head(self, project: str, agent: str) -> HeadInfo | None:
        rows = self._session.rows(_ONE_HEAD, (project, agent))
        return HeadInfo(*rows[0]) if rows else None

    def turns(
        self,
        project: str | None,
        agent: str | None,
        state: str | None,
        before: tuple[int, str] | None,
        limit: int,
        most: int,
    ) -> TurnPage:
        """Return up to `limit` turns, the newest first, of up to `most` that are looked at."""
        at, behind = before or (2**62, "")
        values: dict[str, Any] = {"at": at, "behind": behind, "most": limit + 1}
        filters = ""
        if project is not None:
            filters, values = " AND project_id = %(project)s", {**values, "project": project}
        if agent is not None:
            filters, values = f"{filters} AND agent_id = %(agent)s", {**values, "agent": agent}
        if state in _OPEN:
            filters = f"{filters} AND finished_at IS NULL AND state = %(state)s"
            values["state"] = state
        elif state is not None:
            values["most"] = most
        found = [
            TurnInfo(*row) for row in self._session.rows(_TURNS.format(filters=filters), values)
        ]
        chosen = [turn for turn in found if state in (None, turn.state, turn.status)]
        if len(chosen) > limit:
            last = chosen[limit - 1]
            return TurnPage(chosen[:limit], (last.enqueued, last.id))
        is_cut = len(found) == values["most"]
        return TurnPage(chosen, (found[-1].enqueued, found[-1].id) if is_cut else None)

    def with_prefix(self, prefix: str, project: str | None) -> list[TurnInfo]:
        """Return the first two turns whose id has this prefix."""
        values: dict[str, Any] = {"first": prefix, "last": f"{prefix}g"}
        filters = ""
        if project is not None:
            filters, values = " AND t.project_id = %(project)s", {**values, "project": project}
        rows = self._session.rows(_WITH_PREFIX.format(filters=filters), values)
        return [TurnInfo(*row) for row in rows]

    def of_agent(self, agent: str, project: str | None) -> list[tuple[str, str]]:
        """Return the project and the present or newest turn of agents of this name, two at most."""
        values: dict[str, Any] = {"agent": agent}
        filters = ""
        if project is not None:
            filters, values = " AND h.project_id = %(project)s", {**values, "project": project}
        rows = self._session.rows(_OF_AGENT.format(filters=filters), values)
        return [(found, turn_id) for found, turn_id in rows if turn_id is not None]

    # --- a turn ---

    def calls(self, project: str, turn_id: str, limit: int) -> list[CallInfo]:
        return [CallInfo(*row) for row in self._session.rows(_CALLS, (project, turn_id, limit))]

    def cards(self, turn: TurnInfo, limit: int) -> list[Card]:
        """Return the cards of a turn: its context, then what it has written."""
        key = (turn.output_box_id, turn.project, turn.id, limit)
        return self._cards(self._session.rows(_CARDS, key))

    def children(self, project: str, turn_id: str, limit: int) -> list[tuple[str, str]]:
        """Return the turns that calls of this one have asked, each with its agent."""
        rows = self._session.rows(_CHILDREN, (project, turn_id, limit))
        return [(child_id, agent) for child_id, agent in rows]

    def queued_before(self, turn: TurnInfo) -> int:
        """Return how many messages to the same agent wait before this one."""
        key = (turn.project, turn.agent, turn.enqueued)
        return int(self._session.rows(_BEFORE, key)[0][0])

    def _cards(self, rows: Sequence[Sequence[Any]]) -> list[Card]:
        contents = self._session.payloads.all_shown([shown_attributes(row[6]) for row in rows])
        given = [content.get("content", content) for content in contents]
        pairs = zip(rows, given, strict=True)
        return [Card._make((*row[:6], content, *row[7:])) for row, content in pairs]

    # --- tests and metrics ---

    def open_runs(self) -> list[str]:
        """Return the runs that turns wait for."""
        return [row[0] for row in self._session.rows(_OPEN_RUNS)]

    def deadlines(self) -> list[int]:
        """Return the deadlines of all calls that are waited for."""
        return [row[0] for row in self._session.rows(_DEADLINES)]

    def active_heads(self, project: str | None) -> list[AgentCount]:
        """Count the agents of each project that are not idle, by their state."""
        return self._counted(_STATES, project)

    def open_turns(self, project: str | None) -> list[AgentCount]:
        """Count the turns of each project that have not ended, by their state."""
        return self._counted(_OPEN_TURNS, project)

    def ended_turns(self, project: str | None, after: int) -> list[AgentCount]:
        """Count the turns of each project that have ended since, by their status."""
        return self._counted(_ENDED_TURNS, project, after=after)

    def _counted(self, text: str, project: str | None, **values: Any) -> list[AgentCount]:
        condition = "" if project is None else " AND project_id = %(project)s"
        given = values if project is None else {**values, "project": project}
        return [
            AgentCount(*row) for row in self._session.rows(text.format(filter=condition), given)
        ]

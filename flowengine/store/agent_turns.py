"""Turns of agents: their rows, their steps, the calls that they wait for, edges and events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from flowengine.program.nodes import Json
from flowengine.store import codec
from flowengine.store.agent_plans import new_edge
from flowengine.store.agent_rows import TURN_COLUMNS, NewEdge
from flowengine.store.agent_tables import CALL_IS_OPEN, TURN_IS_WAITED_FOR
from flowengine.store.parts import Part
from flowengine.turns.records import Call, Turn
from flowengine.turns.states import WaitState

_GET = (
    f"SELECT {', '.join(TURN_COLUMNS)} FROM flowengine_agent_turn "
    "WHERE project_id = %s AND agent_turn_id = %s"
)
INFO_COLUMNS = (
    *("agent_turn_id", "project_id", "agent_id", "facet", "state", "correlation_id"),
    *("recursion_depth", "steps", "tokens", "recoveries", "turn_epoch", "parent_turn_id"),
    *("context_box_id", "output_box_id", "deliverable_card_id", "task_status", "error_code"),
    *("error", "enqueued_at", "dispatched_at", "started_at", "finished_at"),
)
_READ = (
    f"SELECT {', '.join(INFO_COLUMNS)} FROM flowengine_agent_turn "
    "WHERE project_id = %s AND agent_turn_id = %s"
)
# Of a run that goes on, a step may have been cancelled, skipped or superseded.
_UNWANTED = (
    "SELECT t.project_id, t.agent_turn_id, t.waiting_run_id FROM flowengine_agent_turn t "
    "LEFT JOIN flowengine_step s ON s.id = t.waiting_step_id "
    "LEFT JOIN flowengine_run r ON r.id = t.waiting_run_id "
    f"WHERE t.{TURN_IS_WAITED_FOR.replace('finished_at', 't.finished_at')} AND (s.id IS NULL "
    "OR r.finished IS NOT NULL OR s.superseded OR s.state IN ('state.statement.Complete', "
    "'state.statement.Error', 'state.statement.Skipped', 'state.statement.Cancelled')) LIMIT %s"
)
_STEPS = (
    "SELECT step_id, number, turn_epoch, run_id, status, tokens, started_at, ended_at "
    "FROM flowengine_agent_step WHERE project_id = %s AND agent_turn_id = %s ORDER BY number"
)
_CALL = (
    *("tool_call_id", "step_id", "tool_name", "model_call_id", "wait_status", "run_id"),
    *("approval", "after_execution", "deadline", "ending", "position"),
)
_OPEN_CALLS = (
    f"SELECT {', '.join(_CALL)} FROM flowengine_turn_waiting_tools "
    f"WHERE project_id = %s AND agent_turn_id = %s AND turn_epoch = %s ORDER BY position"
)
_ALL_CALLS = (
    f"SELECT {', '.join(_CALL)} FROM flowengine_turn_waiting_tools "
    "WHERE project_id = %s AND agent_turn_id = %s ORDER BY created_at, position"
)
_DECIDE_CALL = (
    "UPDATE flowengine_turn_waiting_tools SET approval = %s, approved_by = %s, run_id = %s, "
    "deadline = %s "
    "WHERE project_id = %s AND agent_turn_id = %s AND tool_call_id = %s "
    f"AND {CALL_IS_OPEN} AND approval = 'asked' RETURNING tool_call_id"
)
_EDGE = (
    f"INSERT INTO flowengine_execution_edges ({', '.join(NewEdge._fields)}) "
    f"VALUES ({', '.join(['%s'] * len(NewEdge._fields))}) ON CONFLICT DO NOTHING "
    "RETURNING primitive"
)
_TURN_EVENTS = (
    "SELECT number, kind, agent_turn_id, body, created_at FROM flowengine_agent_event "
    "WHERE project_id = %s AND agent_turn_id = %s AND number > %s ORDER BY number LIMIT %s"
)


class TurnInfo(NamedTuple):
    """A turn for readers."""

    id: str
    project: str
    agent: str
    facet: str
    state: str
    correlation_id: str
    depth: int
    steps: int
    tokens: int
    recoveries: int
    epoch: int
    parent_turn_id: str | None
    context_box_id: str
    output_box_id: str
    deliverable_card_id: str | None
    status: str | None
    error_code: str | None
    error: str | None
    enqueued: int
    dispatched: int | None
    started: int | None
    finished: int | None


class StepRecord(NamedTuple):
    """One model call of a turn, for readers."""

    id: str
    number: int
    epoch: int
    run_id: str
    status: str
    tokens: int
    started: int
    ended: int | None


class AgentEvent(NamedTuple):
    """An event of an agent, as readers get it."""

    number: int
    kind: str
    turn_id: str
    body: Json
    created: int


class AgentTurns(Part):
    """In a transaction."""

    # --- turns ---

    def get(self, project: str, turn_id: str) -> Turn | None:
        rows = self._session.rows(_GET, (project, turn_id))
        return Turn(*rows[0]) if rows else None

    def info(self, project: str, turn_id: str) -> TurnInfo | None:
        rows = self._session.rows(_READ, (project, turn_id))
        return TurnInfo(*rows[0]) if rows else None

    def unwanted(self, limit: int) -> list[tuple[str, str, str]]:
        """Return open turns that no step waits for any more, with the reason."""
        rows = self._session.rows(_UNWANTED, (limit,))
        return [
            (project, turn_id, f"the step of run {run_id} that waited for it has ended")
            for project, turn_id, run_id in rows
        ]

    # --- steps ---

    def steps(self, project: str, turn_id: str) -> list[StepRecord]:
        return [StepRecord(*row) for row in self._session.rows(_STEPS, (project, turn_id))]

    # --- calls ---

    def calls(self, project: str, turn_id: str, epoch: int) -> list[Call]:
        """Return the calls of the suspension that began under an epoch."""
        rows = self._session.rows(_OPEN_CALLS, (project, turn_id, epoch))
        return [_call(row) for row in rows]

    def all_calls(self, project: str, turn_id: str) -> list[Call]:
        return [_call(row) for row in self._session.rows(_ALL_CALLS, (project, turn_id))]

    def decide_call(self, turn: Turn, call: Call, by: str) -> bool:
        """Write that a person has decided about a call; False: somebody has before."""
        about = (call.approval, by, call.run_id, call.deadline)
        key = (turn.project, turn.id, call.id)
        return bool(self._session.rows(_DECIDE_CALL, (*about, *key)))

    # --- edges and events ---

    def add_edge(
        self, turn: Turn, primitive: str, phase: str, correlation_id: str, now: int
    ) -> bool:
        """Add an edge; False: this primitive was recorded before."""
        edge = new_edge(turn, primitive, phase, correlation_id, now)
        return bool(self._session.rows(_EDGE, edge))

    def turn_events(self, project: str, turn_id: str, after: int, limit: int) -> list[AgentEvent]:
        rows = self._session.rows(_TURN_EVENTS, (project, turn_id, after, limit))
        return [_event(row) for row in rows]


def _call(row: Sequence[Any]) -> Call:
    call = Call(*row)
    if call.state != WaitState.WAITING:
        call.effective = call.after_execution
    return call


def _event(row: Sequence[Any]) -> AgentEvent:
    found = AgentEvent(*row)
    return found._replace(body=codec.load(found.body))

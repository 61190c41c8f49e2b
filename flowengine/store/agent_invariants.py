"""Invariants of agents, as queries for the rows that violate them: see `invariants`.

In the place of a run they name the turn.
"""

from __future__ import annotations

from typing import NamedTuple

from flowengine.evaluator.states import RunState, StepState
from flowengine.store.agent_tables import INBOX_IS_DUE
from flowengine.store.parts import quoted
from flowengine.store.tables import FACT_IS_WAITING


class Invariant(NamedTuple):
    """A statement about rows that always holds, and the query for exceptions."""

    name: str
    explanation: str
    #: Returns the id of the run, a subject, and the id of the row; %(old)s is the time before
    #: which a row was written last: younger ones may be about to be handled.
    query: str
    repair: str = ""  #: the name of the repair; empty: a person must look


_HEAD = "flowengine_agent_state_head h"
_TURN = "flowengine_agent_turn t"
_SAME_TURN = "t.project_id = h.project_id AND t.agent_turn_id = h.active_agent_turn_id"
_OPEN_CALLS = (
    "(SELECT count(*) FROM flowengine_turn_waiting_tools w WHERE w.project_id = h.project_id "
    "AND w.agent_turn_id = h.active_agent_turn_id AND w.wait_status = 'waiting')"
)
_FINAL_RUN = quoted(RunState.FINAL)

AGENT_INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        "an agent that is not idle has an active turn, an idle one has none",
        "the agent would never take its next message",
        f"SELECT COALESCE(h.active_agent_turn_id, ''), h.agent_id, '' FROM {_HEAD} "
        f"LEFT JOIN {_TURN} ON {_SAME_TURN} "
        "WHERE (h.status = 'idle') <> (h.active_agent_turn_id IS NULL) "
        "OR (h.active_agent_turn_id IS NOT NULL AND (t.state IS NULL OR t.state <> 'active'))",
    ),
    Invariant(
        "an active turn is that of its agent",
        "the turn would never end",
        f"SELECT t.agent_turn_id, t.agent_id, '' FROM {_TURN} LEFT JOIN {_HEAD} ON {_SAME_TURN} "
        "AND h.agent_id = t.agent_id WHERE t.state = 'active' AND h.agent_id IS NULL",
    ),
    Invariant(
        "an idle agent has no message that waits",
        "the message was left behind, and recovery has not dispatched it",
        "SELECT i.agent_turn_id, i.agent_id, i.inbox_id FROM flowengine_agent_inbox i "
        f"JOIN {_HEAD} ON h.project_id = i.project_id AND h.agent_id = i.agent_id "
        "WHERE i.status = 'queued' AND h.status = 'idle' AND h.updated_at < %(old)s "
        "AND i.created_at < %(old)s",
        "recover",
    ),
    Invariant(
        "a due message of an agent is taken in",
        "a report, a timeout or a stop has not reached its turn",
        "SELECT i.agent_turn_id, i.message_type, i.inbox_id FROM flowengine_agent_inbox i "
        f"WHERE i.{INBOX_IS_DUE} AND i.message_type NOT IN ('turn', 'ui_action') "
        "AND i.next_retry_at < %(old)s",
        "recover",
    ),
    Invariant(
        "a suspended agent counts the calls that it waits for",
        "the turn would go on too early, or never",
        f"SELECT h.active_agent_turn_id, h.agent_id, '' FROM {_HEAD} WHERE h.updated_at < %(old)s "
        f"AND ((h.status = 'suspended' AND h.waiting_tool_count = 0) "
        f"OR (h.active_agent_turn_id IS NOT NULL AND h.waiting_tool_count <> {_OPEN_CALLS}))",
    ),
    Invariant(
        "a call that a turn waits for has a run, or a person who decides",
        "nothing will ever report the call",
        "SELECT w.agent_turn_id, w.tool_name, w.tool_call_id FROM flowengine_turn_waiting_tools w "
        "LEFT JOIN flowengine_run r ON r.id = w.run_id WHERE w.wait_status = 'waiting' "
        "AND w.created_at < %(old)s AND w.approval <> 'asked' AND r.id IS NULL",
    ),
    Invariant(
        "the end of a call's run is reported to its turn",
        "the turn waits for a run that has ended",
        "SELECT w.agent_turn_id, w.tool_name, w.tool_call_id FROM flowengine_turn_waiting_tools w "
        "JOIN flowengine_run r ON r.id = w.run_id WHERE w.wait_status = 'waiting' "
        f"AND r.state IN ({_FINAL_RUN}) AND r.updated < %(old)s AND NOT EXISTS (SELECT 1 "
        "FROM flowengine_agent_inbox i WHERE i.project_id = w.project_id "
        "AND i.agent_id = w.agent_id AND i.message_type = 'tool_result' "
        "AND i.correlation_id = w.tool_call_id)",
    ),
    Invariant(
        "a dispatched or running agent has a model call",
        "nothing will ever answer the turn",
        f"SELECT h.active_agent_turn_id, h.agent_id, COALESCE(h.model_run_id, '') FROM {_HEAD} "
        "LEFT JOIN flowengine_run r ON r.id = h.model_run_id "
        "WHERE h.status IN ('dispatched', 'running') AND h.updated_at < %(old)s AND r.id IS NULL",
    ),
    Invariant(
        "an ended turn has one deliverable in its output box, and one task event",
        "its caller cannot read the result",
        f"SELECT t.agent_turn_id, t.agent_id, '' FROM {_TURN} WHERE t.state = 'finished' "
        "AND (t.finished_at IS NULL OR t.task_status IS NULL "
        "OR NOT EXISTS (SELECT 1 FROM flowengine_box_card b WHERE b.project_id = t.project_id "
        "AND b.box_id = t.output_box_id AND b.card_id = t.deliverable_card_id) "
        "OR NOT EXISTS (SELECT 1 FROM flowengine_agent_event e WHERE e.project_id = t.project_id "
        "AND e.agent_turn_id = t.agent_turn_id AND e.kind = 'task'))",
    ),
    Invariant(
        "a step does not wait for a turn that has ended",
        "the end of the turn was not reported to the run that asked the agent",
        f"SELECT t.agent_turn_id, t.waiting_run_id, t.waiting_step_id FROM {_TURN} "
        "JOIN flowengine_step s ON s.id = t.waiting_step_id WHERE t.finished_at < %(old)s "
        f"AND s.state = '{StepState.EVENT_TRANSMIT}' AND NOT s.superseded "
        "AND NOT EXISTS (SELECT 1 FROM flowengine_fact f WHERE f.run_id = t.waiting_run_id "
        f"AND {FACT_IS_WAITING})",
    ),
    Invariant(
        "the events of an agent are numbered without gaps",
        "readers that continue behind a number would miss one",
        f"SELECT COALESCE(h.active_agent_turn_id, ''), h.agent_id, '' FROM {_HEAD} "
        "WHERE h.event_count < (SELECT COALESCE(max(e.number), 0) FROM flowengine_agent_event e "
        "WHERE e.project_id = h.project_id AND e.agent_id = h.agent_id)",
    ),
    Invariant(
        "a place in a box has its card",
        "the memory of an agent cannot be read",
        "SELECT COALESCE(b.agent_turn_id, ''), b.box_id, b.card_id FROM flowengine_box_card b "
        "LEFT JOIN flowengine_card c ON c.project_id = b.project_id AND c.card_id = b.card_id "
        "WHERE c.card_id IS NULL",
    ),
    Invariant(
        "a turn that has not ended has its profile",
        "its model calls cannot be made",
        f"SELECT t.agent_turn_id, t.agent_id, t.profile_card_id FROM {_TURN} "
        "LEFT JOIN flowengine_card c ON c.project_id = t.project_id "
        "AND c.card_id = t.profile_card_id WHERE t.finished_at IS NULL AND c.card_id IS NULL",
    ),
)

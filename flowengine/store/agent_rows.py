"""The rows of a commit of an agent: one type per section, like those of runs in `commit_rows`."""

from __future__ import annotations

from typing import NamedTuple

from flowengine.store.agent_tables import (
    AgentEventRow,
    AgentInboxRow,
    AgentStateHeadRow,
    AgentStepRow,
    AgentTurnRow,
    BoxCardRow,
    BoxRow,
    CardRow,
    ExecutionEdgesRow,
    TurnWaitingToolsRow,
)
from flowengine.store.commit_rows import Section

MESSAGE_COLUMNS = (
    *("project_id", "inbox_id", "agent_id", "message_type", "correlation_id", "agent_turn_id"),
    *("turn_epoch", "payload", "status", "retry_count", "next_retry_at", "created_at"),
)
TURN_COLUMNS = (
    *("agent_turn_id", "project_id", "agent_id", "state", "facet", "profile_card_id"),
    *("context_box_id", "output_box_id", "output_base_index", "recursion_depth", "trace_id"),
    *("priority", "steps", "tokens", "deadline", "parent_turn_id", "waiting_run_id"),
    *("waiting_step_id", "waiting_step_key", "enqueued_at"),
)


class HeadMessages:
    """Messages that a head waits for (`expecting_correlation_id`), as an update of it treats them.

    A transaction that adds a message notes it in the head first. So an optimistic commit, which has
    read no messages, cannot overtake one.
    """

    NONE = "none"  #: refused if there are any
    TAKEN = "taken"  #: the transaction has taken them in, under the lock of the head
    KEPT = "kept"  #: they wait for the next transaction that takes them in


class HeadUpdate(NamedTuple):
    """The state of an agent after a commit, and the guard: the state that was decided about.

    Epoch and turn are the guard of the protocol. Events and entries are counted by every commit of
    a head, so with them the guard also refuses a decision about a state that was read without a
    lock, and that another commit of the same turn has replaced since (optimistic commit).
    """

    project_id: str
    agent_id: str
    status: str
    active_agent_turn_id: str | None
    turn_epoch: int
    active_recursion_depth: int
    trace_id: str
    parent_step_id: str
    profile_box_id: str | None
    context_box_id: str | None
    output_box_id: str | None
    waiting_tool_count: int
    resume_deadline: int | None
    model_run_id: str | None
    entered: int
    memory_box_id: str | None
    event_count: int
    updated_at: int
    expected_epoch: int
    expected_turn: str  #: empty: the agent was idle
    expected_events: int
    expected_entered: int
    messages: str  #: a HeadMessages


#: The last columns of an update of a head; an insert does not have them.
HEAD_GUARDS = HeadUpdate._fields[HeadUpdate._fields.index("expected_epoch") :]


class TurnUpdate(NamedTuple):
    """The columns of a turn that a commit changes; None: as it is stored."""

    project_id: str
    agent_turn_id: str
    steps: int | None = None
    tokens: int | None = None
    state: str | None = None
    turn_epoch: int | None = None
    output_box_id: str | None = None
    output_base_index: int | None = None
    deadline: int | None = None
    dispatched_at: int | None = None
    started_at: int | None = None
    recoveries: int | None = None
    finished_at: int | None = None
    task_status: str | None = None
    error_code: str | None = None
    error: str | None = None
    deliverable_card_id: str | None = None


class NewCardRow(NamedTuple):
    project_id: str
    card_id: str
    type: str
    author: str
    agent_turn_id: str | None
    step_id: str | None
    tool_call_id: str | None
    content: str
    created_at: int


class NewBox(NamedTuple):
    project_id: str
    box_id: str
    kind: str
    agent_id: str
    parent_box_id: str | None
    created_at: int


class AppendedCard(NamedTuple):
    """A card at the end of a box: `position` counts from there."""

    project_id: str
    box_id: str
    position: int
    card_id: str
    agent_turn_id: str
    turn_epoch: int


class NewAgentStep(NamedTuple):
    project_id: str
    step_id: str
    agent_id: str
    agent_turn_id: str
    number: int
    turn_epoch: int
    run_id: str
    started_at: int


class EndedAgentStep(NamedTuple):
    project_id: str
    step_id: str
    status: str
    tokens: int
    ended_at: int


class NewWaitingTool(NamedTuple):
    project_id: str
    agent_turn_id: str
    agent_id: str
    turn_epoch: int
    created_at: int
    tool_call_id: str
    step_id: str
    tool_name: str
    model_call_id: str
    wait_status: str
    run_id: str | None
    approval: str
    after_execution: str
    deadline: int | None
    ending: str | None
    position: int
    applied_at: int | None = None


class EndedWaitingTool(NamedTuple):
    project_id: str
    agent_turn_id: str
    tool_call_id: str
    wait_status: str
    ending: str | None
    after_execution: str
    applied_at: int


class NewEdge(NamedTuple):
    project_id: str
    correlation_id: str
    primitive: str
    edge_phase: str
    agent_turn_id: str
    source_agent_id: str
    source_step_id: str
    target_agent_id: str
    target_turn_id: str | None
    recursion_depth: int
    trace_id: str
    created_at: int


class NewAgentEvent(NamedTuple):
    project_id: str
    agent_id: str
    number: int
    kind: str
    agent_turn_id: str
    body: str
    created_at: int


class MarkedMessage(NamedTuple):
    """A message that moves on from the state in which it was read."""

    project_id: str
    inbox_id: str
    expected_status: str
    status: str
    turn_epoch: int
    retry_count: int
    next_retry_at: int
    last_error: str | None
    defer_reason: str | None
    processed_at: int | None


#: The sections in the order in which they are written: cards, then state, then events.
AGENT_SECTIONS: dict[str, Section] = {
    "new_cards": Section(CardRow.__table__, NewCardRow._fields),
    "new_boxes": Section(BoxRow.__table__, NewBox._fields),
    "appended_cards": Section(BoxCardRow.__table__, AppendedCard._fields),
    "new_heads": Section(AgentStateHeadRow.__table__, HeadUpdate._fields[: -len(HEAD_GUARDS)]),
    "heads": Section(AgentStateHeadRow.__table__, HeadUpdate._fields),
    "ended_agent_steps": Section(AgentStepRow.__table__, EndedAgentStep._fields),
    "new_agent_steps": Section(
        AgentStepRow.__table__,
        NewAgentStep._fields,
        constants={"status": "'started'", "tokens": "0"},
    ),
    "ended_calls": Section(TurnWaitingToolsRow.__table__, EndedWaitingTool._fields),
    "new_calls": Section(TurnWaitingToolsRow.__table__, NewWaitingTool._fields),
    "edges": Section(ExecutionEdgesRow.__table__, NewEdge._fields),
    "new_turns": Section(
        AgentTurnRow.__table__,
        (*TURN_COLUMNS, "correlation_id", "turn_epoch", "dispatched_at"),
        constants={"recoveries": "0"},
    ),
    "turns": Section(
        AgentTurnRow.__table__, TurnUpdate._fields, optional=tuple(TurnUpdate._fields[2:])
    ),
    "new_messages": Section(AgentInboxRow.__table__, (*MESSAGE_COLUMNS, "context_headers")),
    "messages": Section(AgentInboxRow.__table__, MarkedMessage._fields),
    "agent_events": Section(AgentEventRow.__table__, NewAgentEvent._fields),
}
#: Sections whose rows are written once: a second row of the same id changes nothing.
IDEMPOTENT = (*("new_cards", "new_boxes", "new_agent_steps", "new_turns", "new_messages", "edges"),)
#: Of the sections that are updated: the key, and the columns that guard a row.
AGENT_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "heads": (("project_id", "agent_id"), HEAD_GUARDS),
    "turns": (("project_id", "agent_turn_id"), ()),
    "ended_agent_steps": (("project_id", "step_id"), ()),
    "ended_calls": (("project_id", "agent_turn_id", "tool_call_id"), ()),
    "messages": (("project_id", "inbox_id"), ("expected_status",)),
}
#: The conditions of the guards. A commit of which one row is refused is not written at all.
AGENT_GUARDS = {
    "heads": "t.turn_epoch = {g}expected_epoch "
    "AND COALESCE(t.active_agent_turn_id, '') = {g}expected_turn "
    "AND t.event_count = {g}expected_events AND t.entered = {g}expected_entered "
    f"AND ({{g}}messages <> '{HeadMessages.NONE}' OR t.expecting_correlation_id IS NULL)",
    "turns": "t.finished_at IS NULL",
    "messages": "t.status = {g}expected_status",
}
#: A column of heads that is computed from the kind of their update.
AWAITED_MESSAGE = (
    f"expecting_correlation_id = CASE {{g}}messages WHEN '{HeadMessages.KEPT}' "
    "THEN {t}expecting_correlation_id END"
)

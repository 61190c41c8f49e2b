"""The tables of agents: heads, inboxes, turns, steps, calls, edges, cards, boxes and events.

`project_id` is the tenant of the runs that a turn starts, and the first column of every key: ids
of two projects never meet. It is not the first column of other indexes, if another column selects
more: see `keys_made_last`.
"""

from __future__ import annotations

from sqlalchemy import Index
from sqlmodel import Field

from flowengine.store.columns import (
    Table,
    id_column,
    name_column,
    partial_index,
    text_column,
    time_column,
)

# The conditions of the partial indexes, as queries must state them.
HEAD_IS_SUSPENDED = "status = 'suspended' AND resume_deadline IS NOT NULL"
HEAD_IS_ACTIVE = "status <> 'idle'"
INBOX_IS_DUE = "status IN ('pending', 'deferred')"
INBOX_IS_QUEUED = "status = 'queued'"
CALL_IS_OPEN = "wait_status = 'waiting'"
CARD_IS_RESULT = "type = 'tool.result'"
CARD_IS_DELIVERABLE = "type = 'task.deliverable'"
CARD_IS_PROFILE = "type = 'sys.profile'"
EVENT_IS_TASK = "kind = 'task'"
TURN_IS_WAITED_FOR = "waiting_run_id IS NOT NULL AND finished_at IS NULL"


class AgentStateHeadRow(Table):
    """The state of one agent. Its epoch and active turn guard every update."""

    __tablename__ = "flowengine_agent_state_head"
    __table_args__ = (
        partial_index(HEAD_IS_SUSPENDED, "flowengine_agent_head_deadline", "resume_deadline"),
        # A box has one writer: no two active turns share an output box.
        partial_index(
            *(HEAD_IS_ACTIVE, "flowengine_agent_head_output", "project_id", "output_box_id"),
            unique=True,
        ),
    )

    project_id: str = name_column("", 64, primary_key=True)
    agent_id: str = name_column(primary_key=True)
    status: str = name_column("idle", 16)
    active_agent_turn_id: str | None = id_column(default=None)
    turn_epoch: int = time_column()
    active_recursion_depth: int = 0
    trace_id: str = name_column("", 64)
    parent_step_id: str = name_column("", 32)
    profile_box_id: str | None = id_column(default=None)
    context_box_id: str | None = id_column(default=None)
    output_box_id: str | None = id_column(default=None)
    waiting_tool_count: int = 0
    resume_deadline: int | None = time_column(None)
    expecting_correlation_id: str | None = name_column(None)
    model_run_id: str | None = id_column(default=None)  #: the run of the model call
    entered: int = 0  #: the try of that run which has entered last
    memory_box_id: str | None = id_column(default=None)  #: the output box of the turns before
    event_count: int = time_column()
    updated_at: int = time_column()


class AgentInboxRow(Table):
    """A message to an agent: a turn, a report, a stop. The only way a turn goes on."""

    __tablename__ = "flowengine_agent_inbox"
    __table_args__ = (
        Index(
            "flowengine_agent_inbox_correlation",
            *("project_id", "agent_id", "message_type", "correlation_id"),
            unique=True,
        ),
        partial_index(
            *(INBOX_IS_DUE, "flowengine_agent_inbox_due"),
            *("project_id", "agent_id", "next_retry_at", "created_at"),
        ),
        partial_index(INBOX_IS_DUE, "flowengine_agent_inbox_retry", "next_retry_at"),
        partial_index(
            *(INBOX_IS_QUEUED, "flowengine_agent_inbox_queued"),
            *("project_id", "agent_id", "created_at"),
        ),
        Index("flowengine_agent_inbox_turn", "agent_turn_id", "project_id"),
    )

    project_id: str = name_column("", 64, primary_key=True)
    inbox_id: str = id_column(primary_key=True)
    agent_id: str = name_column()
    message_type: str = name_column("", 16)
    correlation_id: str = name_column()
    agent_turn_id: str = id_column()
    turn_epoch: int = time_column()  #: 0 until a turn is dispatched
    context_headers: str | None = text_column()
    payload: str | None = text_column()
    status: str = name_column("pending", 16)
    retry_count: int = 0
    next_retry_at: int = time_column()
    last_error: str | None = text_column()
    defer_reason: str | None = text_column()
    created_at: int = time_column()
    processed_at: int | None = time_column(None)


class AgentTurnRow(Table):
    """One message to an agent, from its enqueueing to its delivery."""

    __tablename__ = "flowengine_agent_turn"
    __table_args__ = (
        Index("flowengine_agent_turn_agent", "agent_id", "project_id", "enqueued_at"),
        Index("flowengine_agent_turn_enqueued", "project_id", "enqueued_at", "agent_turn_id"),
        Index("flowengine_agent_turn_newest", "enqueued_at", "agent_turn_id"),
        Index("flowengine_agent_turn_finished", "finished_at"),
        Index("flowengine_agent_turn_parent", "parent_turn_id", "project_id"),
        partial_index(TURN_IS_WAITED_FOR, "flowengine_agent_turn_waiting_run", "waiting_run_id"),
    )

    project_id: str = name_column("", 64, primary_key=True)
    agent_turn_id: str = id_column(primary_key=True)
    agent_id: str = name_column()
    facet: str = name_column()  #: the definition of the agent
    state: str = name_column("queued", 16)
    correlation_id: str = name_column()
    profile_card_id: str = id_column()
    context_box_id: str = id_column()
    output_box_id: str = id_column()
    output_base_index: int = 0
    recursion_depth: int = 0
    trace_id: str = name_column("", 64)
    priority: int = 0
    steps: int = 0
    tokens: int = time_column()
    recoveries: int = 0
    deadline: int | None = time_column(None)
    parent_turn_id: str | None = id_column(default=None)
    waiting_run_id: str | None = id_column(default=None)  #: the run whose step waits for its end
    waiting_step_id: str | None = id_column(default=None)
    waiting_step_key: str | None = id_column(default=None)
    turn_epoch: int = time_column()  #: under which it was dispatched
    deliverable_card_id: str | None = id_column(default=None)
    task_status: str | None = name_column(None, 16)
    error_code: str | None = name_column(None, 64)
    error: str | None = text_column()
    enqueued_at: int = time_column()
    dispatched_at: int | None = time_column(None)
    started_at: int | None = time_column(None)
    finished_at: int | None = time_column(None)


class AgentStepRow(Table):
    """One model call of a turn, and the calls that it led to."""

    __tablename__ = "flowengine_agent_step"
    __table_args__ = (Index("flowengine_agent_step_turn", "agent_turn_id", "project_id", "number"),)

    project_id: str = name_column("", 64, primary_key=True)
    step_id: str = id_column(primary_key=True)
    agent_id: str = name_column()
    agent_turn_id: str = id_column()
    number: int = 0
    turn_epoch: int = time_column()
    run_id: str = id_column()  #: of the model call
    status: str = name_column("started", 16)
    tokens: int = 0
    started_at: int = time_column()
    ended_at: int | None = time_column(None)


class TurnWaitingToolsRow(Table):
    """A call of a tool that a turn waits for, or has waited for."""

    __tablename__ = "flowengine_turn_waiting_tools"
    __table_args__ = (
        partial_index(
            *(CALL_IS_OPEN, "flowengine_turn_waiting_open", "project_id", "agent_turn_id"),
        ),
    )

    project_id: str = name_column("", 64, primary_key=True)
    agent_turn_id: str = id_column(primary_key=True)
    tool_call_id: str = id_column(primary_key=True)
    agent_id: str = name_column()
    turn_epoch: int = time_column()  #: of the suspension
    step_id: str = id_column()
    position: int = 0  #: among the calls of its answer
    tool_name: str = name_column()
    model_call_id: str = name_column()
    wait_status: str = name_column("waiting", 16)
    run_id: str | None = id_column(default=None)
    approval: str = name_column("", 16)
    approved_by: str | None = name_column(None)
    after_execution: str = name_column("suspend", 16)
    ending: str | None = name_column(None, 16)
    deadline: int | None = time_column(None)
    created_at: int = time_column()
    applied_at: int | None = time_column(None)


class ExecutionEdgesRow(Table):
    """One primitive, requested or answered, for audits. Never changed."""

    __tablename__ = "flowengine_execution_edges"
    __table_args__ = (Index("flowengine_execution_edges_turn", "agent_turn_id", "project_id"),)

    project_id: str = name_column("", 64, primary_key=True)
    correlation_id: str = name_column(primary_key=True)
    primitive: str = name_column("", 16, primary_key=True)
    edge_phase: str = name_column("", 16, primary_key=True)
    agent_turn_id: str = id_column()  #: the turn whose commit wrote it
    source_agent_id: str = name_column()
    source_step_id: str = name_column("", 32)
    target_agent_id: str = name_column()
    target_turn_id: str | None = id_column(default=None)
    recursion_depth: int = 0
    trace_id: str = name_column("", 64)
    created_at: int = time_column()


class CardRow(Table):
    """An immutable piece of content."""

    __tablename__ = "flowengine_card"
    __table_args__ = (
        partial_index(
            *(CARD_IS_RESULT, "flowengine_card_result", "project_id", "tool_call_id"), unique=True
        ),
        partial_index(
            *(CARD_IS_DELIVERABLE, "flowengine_card_deliverable", "project_id", "agent_turn_id"),
            unique=True,
        ),
        partial_index(CARD_IS_PROFILE, "flowengine_card_profile", "project_id", "card_id"),
        Index("flowengine_card_turn", "agent_turn_id", "project_id"),
    )

    project_id: str = name_column("", 64, primary_key=True)
    card_id: str = id_column(primary_key=True)
    type: str = name_column("", 32)
    author: str = name_column()  #: the agent
    #: The owner of its large content: a turn, or `profile_owner`.
    agent_turn_id: str | None = id_column(default=None)
    step_id: str | None = id_column(default=None)
    tool_call_id: str | None = id_column(default=None)
    content: str = text_column("")
    created_at: int = time_column()


class BoxRow(Table):
    """An ordered list of cards."""

    __tablename__ = "flowengine_box"

    project_id: str = name_column("", 64, primary_key=True)
    box_id: str = id_column(primary_key=True)
    kind: str = name_column("", 16)  #: context, output or profile
    agent_id: str = name_column()
    parent_box_id: str | None = id_column(default=None)
    created_at: int = time_column()


class BoxCardRow(Table):
    """A card's place in a box."""

    __tablename__ = "flowengine_box_card"
    __table_args__ = (
        Index("flowengine_box_card_once", "project_id", "box_id", "card_id", unique=True),
    )

    project_id: str = name_column("", 64, primary_key=True)
    box_id: str = id_column(primary_key=True)
    position: int = Field(primary_key=True)
    card_id: str = id_column()
    agent_turn_id: str | None = id_column(default=None)
    turn_epoch: int = time_column()  #: under which it was appended


class AgentEventRow(Table):
    """An event of an agent, numbered without gaps under the lock of its head."""

    __tablename__ = "flowengine_agent_event"
    __table_args__ = (
        partial_index(
            *(EVENT_IS_TASK, "flowengine_agent_event_task", "project_id", "agent_turn_id"),
            unique=True,
        ),
        Index("flowengine_agent_event_turn", "agent_turn_id", "project_id", "number"),
    )

    project_id: str = name_column("", 64, primary_key=True)
    agent_id: str = name_column(primary_key=True)
    number: int = time_column(primary_key=True, sa_column_kwargs={"autoincrement": False})
    kind: str = name_column("", 8)  #: state, step or task
    agent_turn_id: str = id_column()
    body: str = text_column("")
    created_at: int = time_column()


def keys_made_last() -> list[str]:
    """Return the statements that make the primary keys of these tables after their indexes.

    Without statistics, which a new table has only after the first ANALYZE, PostgreSQL expects one
    row from every index that begins with `project_id`, although most databases have one project. It
    takes the index that is the least high, and of those that cost the same the one that was made
    last. With another index a row would be looked up by reading all rows of its project. So an
    index with few different values, which is small, begins with another column.
    """
    tables = [
        model.__table__
        for model in globals().values()
        if isinstance(model, type) and issubclass(model, Table) and hasattr(model, "__table__")
    ]
    return [
        f"ALTER TABLE {table.name} DROP CONSTRAINT {table.name}_pkey, ADD CONSTRAINT "
        f"{table.name}_pkey PRIMARY KEY ({', '.join(c.name for c in table.primary_key)})"
        for table in tables
    ]

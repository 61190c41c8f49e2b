"""Add the tables of agents, and the call of an agent that a run belongs to."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def _word(length: int) -> sa.String:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def _index(
    name: str, table: str, columns: list[str], where: str = "", unique: bool = False
) -> None:
    condition = sa.text(where) if where else None
    op.create_index(
        name,
        table,
        columns,
        unique=unique,
        sqlite_where=condition,
        postgresql_where=condition,
    )


def upgrade() -> None:
    op.add_column("flowengine_run", sa.Column("agent_call", sa.Text(), nullable=True))
    for name, column in (("created", "tenant"), ("state", "state")):
        op.drop_index(f"flowengine_run_{name}", "flowengine_run")
        columns = [column, "created"]
        _index(f"flowengine_run_{name}", "flowengine_run", columns, "agent_call IS NULL")
        _index(f"flowengine_run_agent_{name}", "flowengine_run", columns, "agent_call IS NOT NULL")
    op.create_table(
        "flowengine_agent_state_head",
        sa.Column("project_id", _word(64), nullable=False),
        sa.Column("agent_id", _word(255), nullable=False),
        sa.Column("status", _word(16), nullable=False),
        sa.Column("active_agent_turn_id", _word(32), nullable=True),
        sa.Column("turn_epoch", sa.BigInteger(), nullable=False),
        sa.Column("active_recursion_depth", sa.Integer(), nullable=False),
        sa.Column("trace_id", _word(64), nullable=False),
        sa.Column("parent_step_id", _word(32), nullable=False),
        sa.Column("profile_box_id", _word(32), nullable=True),
        sa.Column("context_box_id", _word(32), nullable=True),
        sa.Column("output_box_id", _word(32), nullable=True),
        sa.Column("waiting_tool_count", sa.Integer(), nullable=False),
        sa.Column("resume_deadline", sa.BigInteger(), nullable=True),
        sa.Column("expecting_correlation_id", _word(255), nullable=True),
        sa.Column("model_run_id", _word(32), nullable=True),
        sa.Column("entered", sa.Integer(), nullable=False),
        sa.Column("memory_box_id", _word(32), nullable=True),
        sa.Column("event_count", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "agent_id"),
    )
    _index(
        "flowengine_agent_head_deadline",
        "flowengine_agent_state_head",
        ["resume_deadline"],
        "status = 'suspended' AND resume_deadline IS NOT NULL",
    )
    _index(
        "flowengine_agent_head_output",
        "flowengine_agent_state_head",
        ["project_id", "output_box_id"],
        "status <> 'idle'",
        unique=True,
    )
    op.create_table(
        "flowengine_agent_inbox",
        sa.Column("project_id", _word(64), nullable=False),
        sa.Column("inbox_id", _word(32), nullable=False),
        sa.Column("agent_id", _word(255), nullable=False),
        sa.Column("message_type", _word(16), nullable=False),
        sa.Column("correlation_id", _word(255), nullable=False),
        sa.Column("agent_turn_id", _word(32), nullable=False),
        sa.Column("turn_epoch", sa.BigInteger(), nullable=False),
        sa.Column("context_headers", sa.Text(), nullable=True),
        sa.Column("payload", sa.Text(), nullable=True),
        sa.Column("status", _word(16), nullable=False),
        sa.Column("retry_count", sa.Integer(), nullable=False),
        sa.Column("next_retry_at", sa.BigInteger(), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("defer_reason", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("processed_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("project_id", "inbox_id"),
    )
    _index(
        "flowengine_agent_inbox_correlation",
        "flowengine_agent_inbox",
        ["project_id", "agent_id", "message_type", "correlation_id"],
        unique=True,
    )
    _index(
        "flowengine_agent_inbox_due",
        "flowengine_agent_inbox",
        ["project_id", "agent_id", "next_retry_at", "created_at"],
        "status IN ('pending', 'deferred')",
    )
    _index(
        "flowengine_agent_inbox_queued",
        "flowengine_agent_inbox",
        ["project_id", "agent_id", "created_at"],
        "status = 'queued'",
    )
    _index(
        "flowengine_agent_inbox_retry",
        "flowengine_agent_inbox",
        ["next_retry_at"],
        "status IN ('pending', 'deferred')",
    )
    _index("flowengine_agent_inbox_turn", "flowengine_agent_inbox", ["project_id", "agent_turn_id"])
    op.create_table(
        "flowengine_agent_turn",
        sa.Column("project_id", _word(64), nullable=False),
        sa.Column("agent_turn_id", _word(32), nullable=False),
        sa.Column("agent_id", _word(255), nullable=False),
        sa.Column("facet", _word(255), nullable=False),
        sa.Column("state", _word(16), nullable=False),
        sa.Column("correlation_id", _word(255), nullable=False),
        sa.Column("profile_card_id", _word(32), nullable=False),
        sa.Column("context_box_id", _word(32), nullable=False),
        sa.Column("output_box_id", _word(32), nullable=False),
        sa.Column("output_base_index", sa.Integer(), nullable=False),
        sa.Column("recursion_depth", sa.Integer(), nullable=False),
        sa.Column("trace_id", _word(64), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("recoveries", sa.Integer(), nullable=False),
        sa.Column("deadline", sa.BigInteger(), nullable=True),
        sa.Column("parent_turn_id", _word(32), nullable=True),
        sa.Column("waiting_run_id", _word(32), nullable=True),
        sa.Column("waiting_step_id", _word(32), nullable=True),
        sa.Column("waiting_step_key", _word(32), nullable=True),
        sa.Column("turn_epoch", sa.BigInteger(), nullable=False),
        sa.Column("deliverable_card_id", _word(32), nullable=True),
        sa.Column("task_status", _word(16), nullable=True),
        sa.Column("error_code", _word(64), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("enqueued_at", sa.BigInteger(), nullable=False),
        sa.Column("dispatched_at", sa.BigInteger(), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("project_id", "agent_turn_id"),
    )
    _index(
        "flowengine_agent_turn_agent",
        "flowengine_agent_turn",
        ["project_id", "agent_id", "enqueued_at"],
    )
    _index("flowengine_agent_turn_enqueued", "flowengine_agent_turn", ["project_id", "enqueued_at"])
    _index(
        "flowengine_agent_turn_newest", "flowengine_agent_turn", ["enqueued_at", "agent_turn_id"]
    )
    _index("flowengine_agent_turn_finished", "flowengine_agent_turn", ["finished_at"])
    _index(
        "flowengine_agent_turn_parent", "flowengine_agent_turn", ["project_id", "parent_turn_id"]
    )
    _index(
        "flowengine_agent_turn_waiting_run",
        "flowengine_agent_turn",
        ["waiting_run_id"],
        "waiting_run_id IS NOT NULL AND finished_at IS NULL",
    )
    op.create_table(
        "flowengine_agent_step",
        sa.Column("project_id", _word(64), nullable=False),
        sa.Column("step_id", _word(32), nullable=False),
        sa.Column("agent_id", _word(255), nullable=False),
        sa.Column("agent_turn_id", _word(32), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("turn_epoch", sa.BigInteger(), nullable=False),
        sa.Column("run_id", _word(32), nullable=False),
        sa.Column("status", _word(16), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("project_id", "step_id"),
    )
    _index(
        "flowengine_agent_step_turn",
        "flowengine_agent_step",
        ["project_id", "agent_turn_id", "number"],
    )
    op.create_table(
        "flowengine_turn_waiting_tools",
        sa.Column("project_id", _word(64), nullable=False),
        sa.Column("agent_turn_id", _word(32), nullable=False),
        sa.Column("tool_call_id", _word(32), nullable=False),
        sa.Column("agent_id", _word(255), nullable=False),
        sa.Column("turn_epoch", sa.BigInteger(), nullable=False),
        sa.Column("step_id", _word(32), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("tool_name", _word(255), nullable=False),
        sa.Column("model_call_id", _word(255), nullable=False),
        sa.Column("wait_status", _word(16), nullable=False),
        sa.Column("run_id", _word(32), nullable=True),
        sa.Column("approval", _word(16), nullable=False),
        sa.Column("approved_by", _word(255), nullable=True),
        sa.Column("after_execution", _word(16), nullable=False),
        sa.Column("ending", _word(16), nullable=True),
        sa.Column("deadline", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("applied_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("project_id", "agent_turn_id", "tool_call_id"),
    )
    _index(
        "flowengine_turn_waiting_open",
        "flowengine_turn_waiting_tools",
        ["project_id", "agent_turn_id"],
        "wait_status = 'waiting'",
    )
    op.create_table(
        "flowengine_execution_edges",
        sa.Column("project_id", _word(64), nullable=False),
        sa.Column("correlation_id", _word(255), nullable=False),
        sa.Column("primitive", _word(16), nullable=False),
        sa.Column("edge_phase", _word(16), nullable=False),
        sa.Column("agent_turn_id", _word(32), nullable=False),
        sa.Column("source_agent_id", _word(255), nullable=False),
        sa.Column("source_step_id", _word(32), nullable=False),
        sa.Column("target_agent_id", _word(255), nullable=False),
        sa.Column("target_turn_id", _word(32), nullable=True),
        sa.Column("recursion_depth", sa.Integer(), nullable=False),
        sa.Column("trace_id", _word(64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "correlation_id", "primitive", "edge_phase"),
    )
    _index(
        "flowengine_execution_edges_turn",
        "flowengine_execution_edges",
        ["project_id", "agent_turn_id"],
    )
    op.create_table(
        "flowengine_card",
        sa.Column("project_id", _word(64), nullable=False),
        sa.Column("card_id", _word(32), nullable=False),
        sa.Column("type", _word(32), nullable=False),
        sa.Column("author", _word(255), nullable=False),
        sa.Column("agent_turn_id", _word(32), nullable=True),
        sa.Column("step_id", _word(32), nullable=True),
        sa.Column("tool_call_id", _word(32), nullable=True),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "card_id"),
    )
    _index(
        "flowengine_card_deliverable",
        "flowengine_card",
        ["project_id", "agent_turn_id"],
        "type = 'task.deliverable'",
        unique=True,
    )
    _index(
        "flowengine_card_result",
        "flowengine_card",
        ["project_id", "tool_call_id"],
        "type = 'tool.result'",
        unique=True,
    )
    _index("flowengine_card_turn", "flowengine_card", ["project_id", "agent_turn_id"])
    op.create_table(
        "flowengine_box",
        sa.Column("project_id", _word(64), nullable=False),
        sa.Column("box_id", _word(32), nullable=False),
        sa.Column("kind", _word(16), nullable=False),
        sa.Column("agent_id", _word(255), nullable=False),
        sa.Column("parent_box_id", _word(32), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "box_id"),
    )
    op.create_table(
        "flowengine_box_card",
        sa.Column("project_id", _word(64), nullable=False),
        sa.Column("box_id", _word(32), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("card_id", _word(32), nullable=False),
        sa.Column("agent_turn_id", _word(32), nullable=True),
        sa.Column("turn_epoch", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "box_id", "position"),
    )
    _index(
        "flowengine_box_card_once",
        "flowengine_box_card",
        ["project_id", "box_id", "card_id"],
        unique=True,
    )
    op.create_table(
        "flowengine_agent_event",
        sa.Column("project_id", _word(64), nullable=False),
        sa.Column("agent_id", _word(255), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("kind", _word(8), nullable=False),
        sa.Column("agent_turn_id", _word(32), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "agent_id", "number"),
    )
    _index(
        "flowengine_agent_event_task",
        "flowengine_agent_event",
        ["project_id", "agent_turn_id"],
        "kind = 'task'",
        unique=True,
    )
    _index(
        "flowengine_agent_event_turn",
        "flowengine_agent_event",
        ["project_id", "agent_turn_id", "number"],
    )

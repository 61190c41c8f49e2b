"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _word(length: int) -> sa.types.TypeEngine[str]:
    """Compared byte by byte, whatever the language of the server."""
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "flowengine_event",
        sa.Column("run_id", _word(32), nullable=False),
        sa.Column("id", _word(32), nullable=False),
        sa.Column("step_id", _word(32), nullable=False),
        sa.Column("event_type", _word(255), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "id"),
    )
    op.create_table(
        "flowengine_fact",
        sa.Column("id", _word(32), nullable=False),
        sa.Column("run_id", _word(32), nullable=False),
        sa.Column("kind", _word(32), nullable=False),
        sa.Column("dedupe_key", _word(255), nullable=True),
        sa.Column("payload", sa.Text(), nullable=True),
        sa.Column("actor", _word(255), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("taken_in", sa.Boolean(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "flowengine_fact_once", "flowengine_fact", ["run_id", "dedupe_key"], unique=True
    )
    op.create_index(
        "flowengine_fact_waiting",
        "flowengine_fact",
        ["run_id"],
        unique=False,
        sqlite_where=sa.text("NOT taken_in"),
        postgresql_where=sa.text("NOT taken_in"),
    )
    op.create_table(
        "flowengine_history",
        sa.Column("run_id", _word(32), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "revision"),
    )
    op.create_table(
        "flowengine_join",
        sa.Column("id", _word(32), nullable=False),
        sa.Column("run_id", _word(32), nullable=False),
        sa.Column("remaining", sa.Integer(), nullable=False),
        sa.Column("updated", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("flowengine_join_run", "flowengine_join", ["run_id"], unique=False)
    op.create_table(
        "flowengine_lock",
        sa.Column("name", _word(255), nullable=False),
        sa.Column("owner", _word(32), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "flowengine_payload",
        sa.Column("hash", _word(32), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("hash"),
    )
    op.create_table(
        "flowengine_program",
        sa.Column("hash", _word(32), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("hash"),
    )
    op.create_table(
        "flowengine_run",
        sa.Column("id", _word(32), nullable=False),
        sa.Column("tenant", _word(64), nullable=False),
        sa.Column("workflow", _word(255), nullable=False),
        sa.Column("program_hash", _word(32), nullable=False),
        sa.Column("state", _word(16), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("open_steps", sa.Integer(), nullable=False),
        sa.Column("task_count", sa.Integer(), nullable=False),
        sa.Column("outputs", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("alarm", sa.Text(), nullable=True),
        sa.Column("labels", sa.Text(), nullable=True),
        sa.Column("idempotency_key", _word(255), nullable=True),
        sa.Column("singleton_key", _word(255), nullable=True),
        sa.Column("parent_run_id", _word(32), nullable=True),
        sa.Column("parent_step_id", _word(32), nullable=True),
        sa.Column("waiting_step_key", _word(32), nullable=True),
        sa.Column("root_run_id", _word(32), nullable=True),
        sa.Column("trace_id", _word(64), nullable=True),
        sa.Column("deadline", sa.BigInteger(), nullable=True),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("updated", sa.BigInteger(), nullable=False),
        sa.Column("finished", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("flowengine_run_created", "flowengine_run", ["tenant", "created"], unique=False)
    op.create_index(
        "flowengine_run_idempotency",
        "flowengine_run",
        ["tenant", "workflow", "idempotency_key"],
        unique=True,
    )
    op.create_index(
        "flowengine_run_alarm",
        "flowengine_run",
        ["id"],
        unique=False,
        sqlite_where=sa.text("alarm IS NOT NULL"),
        postgresql_where=sa.text("alarm IS NOT NULL"),
    )
    op.create_index("flowengine_run_parent", "flowengine_run", ["parent_run_id"], unique=False)
    op.create_index(
        "flowengine_run_singleton",
        "flowengine_run",
        ["tenant", "workflow", "singleton_key"],
        unique=True,
        sqlite_where=sa.text("finished IS NULL"),
        postgresql_where=sa.text("finished IS NULL"),
    )
    op.create_index("flowengine_run_state", "flowengine_run", ["state", "created"], unique=False)
    op.create_table(
        "flowengine_handled",
        sa.Column("server_id", _word(32), nullable=False),
        sa.Column("handler", _word(255), nullable=False),
        sa.Column("handled", sa.Integer(), nullable=False),
        sa.Column("not_handled", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("server_id", "handler"),
    )
    op.create_table(
        "flowengine_server",
        sa.Column("uuid", _word(32), nullable=False),
        sa.Column("boot_id", _word(32), nullable=False),
        sa.Column("server_group", _word(255), nullable=False),
        sa.Column("service_name", _word(255), nullable=False),
        sa.Column("server_name", _word(255), nullable=False),
        sa.Column("server_ips", sa.Text(), nullable=True),
        sa.Column("start_time", sa.BigInteger(), nullable=False),
        sa.Column("ping_time", sa.BigInteger(), nullable=False),
        sa.Column("topics", sa.Text(), nullable=True),
        sa.Column("handlers", sa.Text(), nullable=True),
        sa.Column("state", _word(16), nullable=False),
        sa.Column("manager", _word(255), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("lock_file", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("uuid"),
    )
    op.create_index(
        "flowengine_server_state", "flowengine_server", ["state", "ping_time"], unique=False
    )
    op.create_table(
        "flowengine_step",
        sa.Column("id", _word(32), nullable=False),
        sa.Column("run_id", _word(32), nullable=False),
        sa.Column("key", _word(32), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("superseded", sa.Boolean(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("object_type", _word(32), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("facet_name", _word(255), nullable=False),
        sa.Column("parent", _word(32), nullable=True),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("state", _word(48), nullable=False),
        sa.Column("params", sa.Text(), nullable=True),
        sa.Column("returns", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("waiting", sa.Integer(), nullable=False),
        sa.Column("remaining", sa.Integer(), nullable=False),
        sa.Column("item_count", sa.Integer(), nullable=False),
        sa.Column("next_index", sa.Integer(), nullable=False),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("yields", sa.Text(), nullable=True),
        sa.Column("program_hash", _word(32), nullable=True),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("updated", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "flowengine_step_instance", "flowengine_step", ["run_id", "key", "generation"], unique=True
    )
    op.create_table(
        "flowengine_task",
        sa.Column("uuid", _word(32), nullable=False),
        sa.Column("run_id", _word(32), nullable=False),
        sa.Column("step_id", _word(32), nullable=False),
        sa.Column("step_key", _word(32), nullable=False),
        sa.Column("step_path", sa.Text(), nullable=False),
        sa.Column("program_hash", _word(32), nullable=False),
        sa.Column("name", _word(255), nullable=False),
        sa.Column("short_name", _word(255), nullable=False),
        sa.Column("task_list_name", _word(255), nullable=False),
        sa.Column("data_type", _word(64), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("try_number", sa.Integer(), nullable=False),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("lease", sa.Integer(), nullable=False),
        sa.Column("state", _word(16), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("due", sa.BigInteger(), nullable=False),
        sa.Column("timeout_ms", sa.BigInteger(), nullable=True),
        sa.Column("runs_once", sa.Boolean(), nullable=False),
        sa.Column("published", sa.BigInteger(), nullable=True),
        sa.Column("started", sa.BigInteger(), nullable=True),
        sa.Column("activity", sa.BigInteger(), nullable=True),
        sa.Column("server_id", _word(32), nullable=True),
        sa.Column("boot_id", _word(32), nullable=True),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("limit_key", _word(255), nullable=True),
        sa.Column("limit_slot", sa.Integer(), nullable=True),
        sa.Column("join_id", _word(32), nullable=True),
        sa.Column("outcome", _word(16), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("usage", sa.Text(), nullable=True),
        sa.Column("progress", sa.Text(), nullable=True),
        sa.Column("taken_in", sa.Boolean(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("updated", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("uuid"),
    )
    op.create_index(
        "flowengine_task_due",
        "flowengine_task",
        ["task_list_name", "rank", "due", "position"],
        unique=False,
        sqlite_where=sa.text("state = 'pending'"),
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_index(
        "flowengine_task_one_running_per_step",
        "flowengine_task",
        ["step_id"],
        unique=True,
        sqlite_where=sa.text("state = 'running'"),
        postgresql_where=sa.text("state = 'running'"),
    )
    op.create_index(
        "flowengine_task_reported",
        "flowengine_task",
        ["run_id", "join_id"],
        unique=False,
        sqlite_where=sa.text("state IN ('completed', 'failed') AND NOT taken_in"),
        postgresql_where=sa.text("state IN ('completed', 'failed') AND NOT taken_in"),
    )
    op.create_index(
        "flowengine_task_retry",
        "flowengine_task",
        ["due"],
        unique=False,
        sqlite_where=sa.text("state = 'pending' AND due > created AND published IS NULL"),
        postgresql_where=sa.text("state = 'pending' AND due > created AND published IS NULL"),
    )
    op.create_index("flowengine_task_run", "flowengine_task", ["run_id", "step_id"], unique=False)
    op.create_index(
        "flowengine_task_running",
        "flowengine_task",
        ["boot_id"],
        unique=False,
        sqlite_where=sa.text("state = 'running'"),
        postgresql_where=sa.text("state = 'running'"),
    )
    op.create_table(
        "flowengine_timer",
        sa.Column("id", _word(32), nullable=False),
        sa.Column("run_id", _word(32), nullable=False),
        sa.Column("step_id", _word(32), nullable=True),
        sa.Column("kind", _word(32), nullable=False),
        sa.Column("due", sa.BigInteger(), nullable=False),
        sa.Column("fired", sa.BigInteger(), nullable=True),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "flowengine_timer_due",
        "flowengine_timer",
        ["due"],
        unique=False,
        sqlite_where=sa.text("fired IS NULL"),
        postgresql_where=sa.text("fired IS NULL"),
    )
    if op.get_bind().dialect.name == "postgresql":
        for table in ("flowengine_run", "flowengine_step"):
            op.execute(f"ALTER TABLE {table} SET (fillfactor = 45)")

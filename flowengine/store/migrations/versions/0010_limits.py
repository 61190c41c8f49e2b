"""Add limits, rates and the queues of tasks that wait for them.

A task has the time that it waited, by reason. The new columns are empty in rows that workers of an
earlier version insert. No version has written or read the column `limit_slot`.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0008"
branch_labels = None
depends_on = None


def _word(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def _time(name: str, *, nullable: bool = True) -> "sa.Column[int]":
    return sa.Column(name, sa.BigInteger(), nullable=nullable)


def _partial_index(name: str, table: str, columns: list[str], condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)


def upgrade() -> None:
    op.drop_column("flowengine_task", "limit_slot")
    op.add_column("flowengine_task", sa.Column("limits", sa.Text(), nullable=True))
    op.add_column("flowengine_task", sa.Column("queue", _word(32), nullable=True))
    for reason in ("backoff", "limit", "rate", "circuit", "hold"):
        op.add_column("flowengine_task", _time(f"waited_{reason}"))
    _partial_index(
        "flowengine_task_waiting",
        "flowengine_task",
        ["queue", "rank", "due", "position"],
        "state = 'waiting'",
    )
    op.add_column("flowengine_run", _time("key_expires"))
    op.add_column("flowengine_run", sa.Column("queued_key", _word(255), nullable=True))
    is_queued = "queued_key IS NOT NULL AND finished IS NULL"
    columns = ["tenant", "workflow", "queued_key", "created", "id"]
    _partial_index("flowengine_run_queued", "flowengine_run", columns, is_queued)
    _partial_index("flowengine_run_queued_id", "flowengine_run", ["id"], is_queued)
    op.create_table(
        "flowengine_limit",
        sa.Column("key", _word(255), primary_key=True),
        sa.Column("count", sa.Integer(), nullable=False),
        _time("per"),
        _time("since", nullable=False),
        _time("due"),
        _time("updated", nullable=False),
    )
    _partial_index("flowengine_limit_due", "flowengine_limit", ["due"], "due IS NOT NULL")
    op.create_table(
        "flowengine_slot",
        sa.Column("key", _word(255), primary_key=True),
        sa.Column("task_id", _word(32), primary_key=True),
        _time("per"),
        _time("until"),
    )
    op.create_table(
        "flowengine_queue",
        sa.Column("id", _word(32), primary_key=True),
        sa.Column("limits", sa.Text(), nullable=False),
        sa.Column("blocked_on", _word(255), nullable=True),
        _time("turn", nullable=False),
        sa.Column("passed", sa.Integer(), nullable=False),
        sa.Column("switches", sa.Text(), nullable=True),
        _time("due"),
        _time("updated", nullable=False),
    )
    op.create_index("flowengine_queue_turn", "flowengine_queue", ["blocked_on", "turn"])
    _partial_index("flowengine_queue_due", "flowengine_queue", ["due"], "due IS NOT NULL")

"""Keep schedules and their ticks."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def _word(length: int) -> sa.String:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "flowengine_schedule",
        sa.Column("tenant", _word(64), nullable=False),
        sa.Column("name", _word(255), nullable=False),
        sa.Column("workflow", _word(255), nullable=False),
        sa.Column("program_hash", _word(32), nullable=False),
        sa.Column("definition", sa.Text(), nullable=False),
        sa.Column("source", _word(16), nullable=False),
        sa.Column("state", _word(16), nullable=False),
        sa.Column("next_tick", sa.BigInteger(), nullable=True),
        sa.Column("due", sa.BigInteger(), nullable=True),
        sa.Column("actor", _word(255), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("updated", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "name"),
    )
    is_due = sa.text("due IS NOT NULL")
    op.create_index(
        "flowengine_schedule_due",
        "flowengine_schedule",
        ["due"],
        sqlite_where=is_due,
        postgresql_where=is_due,
    )
    op.create_table(
        "flowengine_tick",
        sa.Column("tenant", _word(64), nullable=False),
        sa.Column("schedule", _word(255), nullable=False),
        sa.Column("nominal", sa.BigInteger(), nullable=False),
        sa.Column("outcome", _word(16), nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=True),
        sa.Column("tick_count", sa.Integer(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("actor", _word(255), nullable=True),
        sa.Column("run_id", _word(32), nullable=True),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "schedule", "nominal", "outcome"),
    )
    op.create_index("flowengine_tick_created", "flowengine_tick", ["created"])

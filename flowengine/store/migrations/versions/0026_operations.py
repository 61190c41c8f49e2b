"""List the actions of people over all runs; close workflows; override limits, rates, breakers."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def _word(length: int) -> sa.String:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def upgrade() -> None:
    # Small: most facts are answers, timers and ends of child runs, and are not in it.
    is_action = sa.text("kind IN ('Action', 'Operation')")
    op.create_index(
        "flowengine_fact_action",
        "flowengine_fact",
        ["created", "id"],
        postgresql_where=is_action,
        sqlite_where=is_action,
    )
    # Older versions, which may still run, do not read these: they admit by the programs' numbers.
    for column in (
        sa.Column("set_count", sa.Integer(), nullable=True),
        sa.Column("set_per", sa.BigInteger(), nullable=True),
        sa.Column("set_by", _word(255), nullable=True),
        sa.Column("set_reason", sa.Text(), nullable=True),
        sa.Column("set_at", sa.BigInteger(), nullable=True),
    ):
        op.add_column("flowengine_limit", column)
    op.create_table(
        "flowengine_breaker",
        sa.Column("name", _word(255), nullable=False),
        sa.Column("is_open", sa.Boolean(), nullable=False),
        sa.Column("failure_threshold", sa.Integer(), nullable=True),
        sa.Column("timeout_ms", sa.BigInteger(), nullable=True),
        sa.Column("actor", _word(255), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("updated", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "flowengine_closed",
        sa.Column("workflow", _word(255), nullable=False),
        sa.Column("actor", _word(255), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("closed", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("workflow"),
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup to go back")

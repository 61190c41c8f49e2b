"""Keep the logs of steps."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def _word(length: int) -> sa.String:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "flowengine_log",
        sa.Column("task_id", _word(32), nullable=False),
        sa.Column("lease", sa.BigInteger(), nullable=False),
        sa.Column("first_line", sa.BigInteger(), nullable=False),
        sa.Column("run_id", _word(32), nullable=False),
        sa.Column("line_count", sa.Integer(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", "lease", "first_line"),
    )
    op.create_index("flowengine_log_run", "flowengine_log", ["run_id", "created"])
    op.create_index("flowengine_log_created", "flowengine_log", ["created"])

"""Number the commits of all runs, for the feed of their events."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def _word(length: int) -> sa.String:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "flowengine_unnumbered",
        sa.Column("run_id", _word(32), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "revision"),
    )
    op.create_table(
        "flowengine_feed",
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("run_id", _word(32), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("tenant", _word(64), nullable=False),
        sa.PrimaryKeyConstraint("position"),
    )
    op.create_table(
        "flowengine_counter",
        sa.Column("name", _word(64), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_index("flowengine_unnumbered_created", "flowengine_unnumbered", ["created"])
    columns = ["run_id", "revision"]
    op.create_index("flowengine_feed_run", "flowengine_feed", columns, unique=True)
    op.create_index("flowengine_feed_tenant", "flowengine_feed", ["tenant", "position"])

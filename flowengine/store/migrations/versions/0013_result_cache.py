"""Keep results of event facets for later steps with the same key."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def _word(length: int) -> sa.String:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "flowengine_cache",
        sa.Column("id", _word(32), nullable=False),
        sa.Column("key", _word(32), nullable=False),
        sa.Column("tenant", _word(64), nullable=False),
        sa.Column("facet", _word(255), nullable=False),
        sa.Column("run_id", _word(32), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("returns", sa.Text(), nullable=True),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("flowengine_cache_key", "flowengine_cache", ["key", "created"])
    op.create_index("flowengine_cache_expires", "flowengine_cache", ["expires"])
    op.add_column("flowengine_event", sa.Column("source", sa.Text(), nullable=True))

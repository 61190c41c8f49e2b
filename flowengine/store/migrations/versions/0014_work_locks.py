"""Add locks on work, which expire."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def _word(length: int) -> sa.String:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "flowengine_worklock",
        sa.Column("key", _word(255), nullable=False),
        sa.Column("holder", _word(32), nullable=False),
        sa.Column("acquired", sa.BigInteger(), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=False),
        sa.Column("meta", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index("flowengine_worklock_expires", "flowengine_worklock", ["expires"])

"""Keep the answers of models and the results of their tools."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def _word(length: int) -> sa.String:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "flowengine_exchange",
        sa.Column("run_id", _word(32), nullable=False),
        sa.Column("step_id", _word(32), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("kind", _word(16), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "step_id", "number"),
    )

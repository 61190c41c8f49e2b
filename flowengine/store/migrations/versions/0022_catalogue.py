"""Keep a catalogue of the workflows that can be started by name."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def _word(length: int) -> sa.String:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "flowengine_workflow",
        sa.Column("name", _word(255), nullable=False),
        sa.Column("program_hash", _word(32), nullable=True),
        sa.Column("digest", _word(32), nullable=False),
        sa.Column("source", _word(16), nullable=False),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("inputs", sa.Text(), nullable=False),
        sa.Column("problems", sa.Text(), nullable=True),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("updated", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )

"""Keep the access tokens of the wire protocol."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def _word(length: int) -> sa.String:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "flowengine_token",
        sa.Column("id", _word(32), nullable=False),
        sa.Column("name", _word(100), nullable=False),
        sa.Column("digest", _word(64), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=True),
        sa.Column("task_lists", sa.Text(), nullable=True),
        sa.Column("tenant", _word(64), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=True),
        sa.Column("revoked", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("flowengine_token_name", "flowengine_token", ["name"], unique=True)
    op.create_index("flowengine_token_digest", "flowengine_token", ["digest"], unique=True)

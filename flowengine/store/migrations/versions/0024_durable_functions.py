"""Give steps the columns of durable functions and their calls."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def _word(length: int) -> sa.String:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def upgrade() -> None:
    # Older versions, which may still run, do not insert these.
    for column in (
        sa.Column("digest", _word(32), nullable=True),
        sa.Column("heard", sa.Text(), nullable=True),
        sa.Column("activation", sa.Integer(), nullable=False, server_default=sa.text("0")),
    ):
        op.add_column("flowengine_step", column)

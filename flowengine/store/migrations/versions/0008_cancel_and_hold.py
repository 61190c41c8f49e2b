"""Keep whether a child run follows the cancellation of its parent, and which tasks are held.

With a default in the database: workers of 0007 insert tasks without this column.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    name = sa.String(16).with_variant(sa.String(16, collation="C"), "postgresql")
    op.add_column("flowengine_run", sa.Column("on_cancel", name, nullable=True))
    op.add_column(
        "flowengine_task",
        sa.Column("is_held", sa.Boolean(), nullable=False, server_default=sa.text("false")),
    )

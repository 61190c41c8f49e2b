"""Count the steps of a run, and the child runs inside and below each other.

With defaults in the database: workers of 0002 insert runs without these columns.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("step_count", "depth"):
        column = sa.Column(name, sa.Integer(), nullable=False, server_default="0")
        op.add_column("flowengine_run", column)
    is_child = sa.text("parent_run_id IS NOT NULL")
    op.create_index(
        "flowengine_run_root",
        "flowengine_run",
        ["root_run_id"],
        sqlite_where=is_child,
        postgresql_where=is_child,
    )

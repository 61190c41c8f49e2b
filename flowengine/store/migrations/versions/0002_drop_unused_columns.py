"""Drop two columns that no version has written or read, so workers of 0001 do not miss them."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_column("flowengine_run", "trace_id")
    op.drop_column("flowengine_task", "usage")

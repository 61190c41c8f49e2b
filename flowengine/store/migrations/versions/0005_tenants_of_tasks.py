"""Give tasks the tenant of their run.

A claim takes the tasks of one tenant, so the index of due tasks has the tenant before the priority.
With a default in the database: workers of 0004 insert tasks without this column.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    name = sa.String(64).with_variant(sa.String(64, collation="C"), "postgresql")
    op.add_column(
        "flowengine_task", sa.Column("tenant", name, nullable=False, server_default=sa.text("''"))
    )
    op.execute(
        "UPDATE flowengine_task SET tenant = "
        "(SELECT r.tenant FROM flowengine_run r WHERE r.id = flowengine_task.run_id) "
        "WHERE state IN ('pending', 'running') AND run_id IN "
        "(SELECT id FROM flowengine_run WHERE tenant <> '')"
    )
    is_pending = sa.text("state = 'pending'")
    op.drop_index("flowengine_task_due", "flowengine_task")
    op.create_index(
        "flowengine_task_due",
        "flowengine_task",
        ["task_list_name", "tenant", "rank", "due", "position"],
        sqlite_where=is_pending,
        postgresql_where=is_pending,
    )

"""List the actions of people over all runs, by an index of their facts."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Small: most facts are answers, timers and ends of child runs, and are not in it.
    is_action = sa.text("kind IN ('Action', 'Operation')")
    op.create_index(
        "flowengine_fact_action",
        "flowengine_fact",
        ["created", "id"],
        postgresql_where=is_action,
        sqlite_where=is_action,
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup to go back")

"""Count the bytes of a run's values.

With a default in the database: workers of 0003 insert runs without this column.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    column = sa.Column("value_bytes", sa.BigInteger(), nullable=False, server_default="0")
    op.add_column("flowengine_run", column)

"""Keep the session lock of each server; leave the heartbeat out of the index."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("flowengine_server", sa.Column("lock_token", sa.Text(), nullable=True))
    op.drop_index("flowengine_server_state", table_name="flowengine_server")
    op.create_index("flowengine_server_state", "flowengine_server", ["state"])

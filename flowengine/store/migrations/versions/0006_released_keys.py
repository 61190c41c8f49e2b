"""Keep the key of a failed run that a later start has replaced."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    key = sa.String(255).with_variant(sa.String(255, collation="C"), "postgresql")
    op.add_column("flowengine_run", sa.Column("released_key", key, nullable=True))

"""Keep the run that a run was forked from."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    digest = sa.String(32).with_variant(sa.String(32, collation="C"), "postgresql")
    op.add_column("flowengine_run", sa.Column("forked_from", digest, nullable=True))

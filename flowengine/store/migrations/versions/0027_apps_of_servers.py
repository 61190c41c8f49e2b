"""Say which app and broker a server has, and which code it has for its facets."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def _word(length: int) -> sa.String:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def upgrade() -> None:
    # Older versions, which may still run, do not insert these.
    for column in (
        sa.Column("app", _word(255), nullable=False, server_default=sa.text("''")),
        sa.Column("broker", _word(16), nullable=False, server_default=sa.text("''")),
        sa.Column("definitions", sa.Text(), nullable=True),
    ):
        op.add_column("flowengine_server", column)


def downgrade() -> None:
    raise NotImplementedError("restore a backup to go back")

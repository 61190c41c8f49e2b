"""Keep the limits of workers, and say what a server is: its version and its machine."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def _word(length: int) -> sa.String:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def upgrade() -> None:
    # Older versions, which may still run, do not insert these.
    for column in (
        sa.Column("version", _word(64), nullable=False, server_default=sa.text("''")),
        sa.Column("machine", _word(255), nullable=False, server_default=sa.text("''")),
        sa.Column("max_tasks", sa.Integer(), nullable=True),
        sa.Column("max_workflows", sa.Integer(), nullable=True),
        sa.Column("full_lists", sa.Text(), nullable=True),
    ):
        op.add_column("flowengine_server", column)
    op.create_table(
        "flowengine_workerlimit",
        sa.Column("name", _word(255), nullable=False),
        sa.Column("max_tasks", sa.Integer(), nullable=True),
        sa.Column("max_workflows", sa.Integer(), nullable=True),
        sa.Column("actor", _word(255), nullable=True),
        sa.Column("updated", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )

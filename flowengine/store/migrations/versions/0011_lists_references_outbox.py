"""Find runs by workflow, key, label and error; refer to large values; deliver outcomes."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def _word(length: int) -> sa.String:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def _partial(name: str, table: str, columns: list[str], where: str) -> None:
    condition = sa.text(where)
    op.create_index(name, table, columns, sqlite_where=condition, postgresql_where=condition)


def upgrade() -> None:
    op.add_column("flowengine_run", sa.Column("error_type", _word(255), nullable=True))
    op.create_table(
        "flowengine_label",
        sa.Column("run_id", _word(32), nullable=False),
        sa.Column("name", _word(255), nullable=False),
        sa.Column("value", _word(255), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "name"),
    )
    op.create_table(
        "flowengine_reference",
        sa.Column("run_id", _word(32), nullable=False),
        sa.Column("hash", _word(32), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "hash"),
    )
    op.create_table(
        "flowengine_outbox",
        sa.Column("run_id", _word(32), nullable=False),
        sa.Column("sink", _word(16), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("due", sa.BigInteger(), nullable=True),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "sink", "revision"),
    )
    _fill()
    run = "flowengine_run"
    op.create_index("flowengine_run_workflow", run, ["workflow", "created"])
    _partial("flowengine_run_key", run, ["idempotency_key"], "idempotency_key IS NOT NULL")
    _partial("flowengine_run_released_key", run, ["released_key"], "released_key IS NOT NULL")
    columns = ["error_type", "created"]
    _partial("flowengine_run_error_type", run, columns, "error_type IS NOT NULL")
    _partial("flowengine_step_mailbox", "flowengine_step", ["run_id"], "object_type = 'Mailbox'")
    columns = ["name", "value", "created", "run_id"]
    op.create_index("flowengine_label_run", "flowengine_label", columns)
    op.create_index("flowengine_reference_hash", "flowengine_reference", ["hash"])
    _partial("flowengine_outbox_due", "flowengine_outbox", ["due"], "due IS NOT NULL")


def _fill() -> None:
    """Fill the new columns and rows from the runs that are stored."""
    connection = op.get_bind()
    of_error = "(error::json)->>'type'"
    if connection.dialect.name == "sqlite":
        of_error = "json_extract(error, '$.type')"
    connection.execute(
        sa.text(
            f"UPDATE flowengine_run SET error_type = substr({of_error}, 1, 255) "
            "WHERE error IS NOT NULL"
        )
    )
    query = sa.text("SELECT id, labels, created FROM flowengine_run WHERE labels IS NOT NULL")
    insert = sa.text(
        "INSERT INTO flowengine_label (run_id, name, value, created) VALUES (:run, :name, :value, "
        ":created) ON CONFLICT DO NOTHING"
    )
    for run_id, labels, created in connection.execute(query).all():
        for name, value in json.loads(labels).items():
            values = {"run": run_id, "name": _text(name), "value": _text(value)}
            connection.execute(insert, {**values, "created": created})


def _text(text: str) -> str:
    return json.dumps(text)[1:-1][:200]

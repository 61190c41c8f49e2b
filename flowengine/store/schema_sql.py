"""The SQL of an upgrade, for people who apply it themselves."""

from __future__ import annotations

import io
import threading

from sqlalchemy import Dialect

from flowengine.errors import StoreError
from flowengine.store.migrations import HEAD, KNOWN
from flowengine.store.schema_upgrade import (
    LOCK_TIMEOUT,
    alembic_config,
    create_statements,
    record_lowest,
    stamp_statements,
)

#: It moves rows by Python: a script of SQL cannot do it.
_MOVES_ROWS = "0011"
_alembic = threading.Lock()


def upgrade_sql(dialect: Dialect, before: str, schema: str = "") -> str:
    """Return the statements that upgrade a database of that revision; empty: it has no schema.

    One transaction, like the upgrade itself. Raises StoreError.
    """
    if before and before not in KNOWN:
        known = f"none, or one of {KNOWN[0]} to {KNOWN[-1]}"
        raise StoreError(f"there is no schema revision {before!r} in this flowengine: {known}")
    if before == HEAD:
        return f"-- revision {HEAD}: nothing to upgrade\n"
    if before and before < _MOVES_ROWS:
        raise StoreError(
            f"revision {_MOVES_ROWS} moves rows, which SQL alone does not do: upgrade this "
            f"database of revision {before} with `flowengine db upgrade`"
        )
    server = {"postgresql": "PostgreSQL", "sqlite": "SQLite"}[dialect.name]
    head = [f"-- flowengine: schema {before or 'none'} to {HEAD}, for {server}", "BEGIN;"]
    if before and dialect.name == "postgresql":
        head.append(f"{LOCK_TIMEOUT};")
    if schema:
        head += [
            f'CREATE SCHEMA IF NOT EXISTS "{schema}";',
            f'SET LOCAL search_path TO "{schema}";',
        ]
    body = _migrated(dialect.name, before) if before else _created(dialect)
    return "\n".join([*head, *body, f"{record_lowest()};", "COMMIT;", ""])


def _created(dialect: Dialect) -> list[str]:
    return [f"{one.strip()};" for one in (*create_statements(dialect), *stamp_statements())]


def _migrated(dialect: str, before: str) -> list[str]:
    from alembic import command

    config = alembic_config()
    config.attributes["dialect"] = dialect
    config.output_buffer = written = io.StringIO()
    with _alembic:
        command.upgrade(config, f"{before}:head", sql=True)
    lines = [line.rstrip() for line in written.getvalue().splitlines()]
    # Its own transaction would end before the last statement.
    return [line for line in lines if line and line not in ("BEGIN;", "COMMIT;")]

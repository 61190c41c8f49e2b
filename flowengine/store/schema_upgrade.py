"""Bring a database to the schema this package works with.

All upgraders take turns under a lock, and each upgrade is one transaction: two processes
that start together on an empty database make one schema, and a killed one leaves none.
"""

from __future__ import annotations

import threading
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from flowengine.errors import DatabaseTooNew, DatabaseTooOld
from flowengine.store.database import Database
from flowengine.store.migrations import HEAD, KNOWN, VERSION_TABLE
from flowengine.store.tables import metadata

_LOCK = 0x666C6F77  # "flow"
#: Alembic keeps what it is doing in a module: two threads would work on one database.
_alembic = threading.Lock()


def revision_of(connection: Connection) -> str:
    """Return the schema revision of a database; empty for a database without one."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return ""
    found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return str(found or "")


def ensure_schema(database: Database, *, upgrade: bool) -> None:
    """Check the schema, and upgrade it where that is allowed.

    An embedded database belongs to the process that uses it and is upgraded by itself. A
    server is shared by processes of several versions, and its operator decides when.
    """
    with database.read() as connection:
        revision = revision_of(connection)
    if revision == HEAD:
        return
    if revision and revision not in KNOWN:
        raise DatabaseTooNew(database.name, revision)
    if not upgrade:
        raise DatabaseTooOld(database.name, revision, HEAD)
    upgrade_schema(database)


def upgrade_schema(database: Database) -> tuple[str, str]:
    """Upgrade the schema; return the revision before and after."""
    with database.write() as connection:
        if not database.is_sqlite:
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
        before = revision_of(connection)
        if before and before not in KNOWN:
            raise DatabaseTooNew(database.name, before)
        if not before:
            # What all migrations lead to, as tests see to; and made without Alembic, which takes
            # longer to import than most first runs take.
            metadata.create_all(connection, checkfirst=False)
            _stamp(connection)
        elif before != HEAD:
            migrate(connection)
    return before, HEAD


def _stamp(connection: Connection) -> None:
    """Leave what Alembic leaves, so that it can go on from here."""
    key = f"CONSTRAINT {VERSION_TABLE}_pkc PRIMARY KEY (version_num)"
    connection.execute(
        text(f"CREATE TABLE {VERSION_TABLE} (version_num VARCHAR(32) NOT NULL, {key})")
    )
    connection.execute(text(f"INSERT INTO {VERSION_TABLE} VALUES (:head)"), {"head": HEAD})


def migrate(connection: Connection) -> None:
    """Take all migrations from where the database is."""
    from alembic import command  # slow to import, and mostly not needed
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    with _alembic:
        command.upgrade(config, "head")

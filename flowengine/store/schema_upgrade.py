"""Bring a database to the schema this package works with.

Upgrades hold a lock and are one transaction each: two processes that start together on an empty
database create one schema, and a killed process leaves none.
"""

from __future__ import annotations

import atexit
import random
import threading
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, cast

from sqlalchemy import Connection, Dialect, text
from sqlalchemy.engine.mock import MockConnection
from sqlalchemy.exc import OperationalError
from sqlalchemy.schema import ExecutableDDLElement

from flowengine.errors import DatabaseTooNew, DatabaseTooOld, StoreError
from flowengine.store.agent_tables import keys_made_last
from flowengine.store.database import Database
from flowengine.store.failures import is_locked
from flowengine.store.migrations import HEAD, KNOWN, LOWEST, VERSION_TABLE
from flowengine.store.tables import metadata

if TYPE_CHECKING:
    from alembic.config import Config

    from flowengine.store.protocol import Store
    from flowengine.store.session import SqlSession
    from flowengine.store.sqlite.database import SqliteDatabase

_LOCK = 0x666C6F77  # "flow"
#: Shorter than PostgreSQL's `deadlock_timeout`: of a worker and an upgrade that wait for each
#: other the upgrade gives way, and all that wait behind it go on soon.
LOCK_TIMEOUT = "SET LOCAL lock_timeout = '800ms'"
_MOST_TRIES = 60
_HAS_VERSION = {
    "postgresql": f"SELECT to_regclass('{VERSION_TABLE}')",
    "sqlite": f"SELECT 1 FROM sqlite_master WHERE name = '{VERSION_TABLE}'",
}
#: Alembic keeps its state in a module: two threads would work on one database.
_alembic = threading.Lock()


def revision_of(connection: Connection) -> str:
    """Return the schema revision of a database; empty for a database without one."""
    # Not by an inspector, which takes half of the time in which a process opens its database.
    if connection.exec_driver_sql(_HAS_VERSION[connection.dialect.name]).scalar() is None:
        return ""
    revision = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return str(revision or "")


def ensure_schema(database: Database, *, upgrade: bool | None = None) -> None:
    """Check the schema, and upgrade it if `upgrade`, or if it is None and a file has the database.

    A database file belongs to the process that uses it and is upgraded automatically. A server
    is shared by processes of several versions, and its operator decides when. A database that is
    refused is closed: its caller does not get as far as something that would close it.
    """
    try:
        _check_or_upgrade(database, not database.has_server if upgrade is None else upgrade)
    except StoreError:
        database.close()
        raise


def _check_or_upgrade(database: Database, upgrade: bool) -> None:
    with database.read() as session:
        revision = revision_of(session.connection)
    if revision == HEAD:
        return
    if revision and revision not in KNOWN:
        refuse_newer(database, revision)
        return
    if not upgrade:
        raise DatabaseTooOld(database.name, revision, HEAD)
    upgrade_schema(database)


#: The row of `flowengine_counter` with the oldest code that can work with the schema, as a number.
_LOWEST_ROW = "schema.lowest"
_READ_LOWEST = text(f"SELECT value FROM flowengine_counter WHERE name = '{_LOWEST_ROW}'")


def lowest_code(connection: Connection) -> int | None:
    """Return the oldest revision of code that can work with the schema; None: it does not say."""
    found = connection.execute(_READ_LOWEST).scalar()
    return None if found is None else int(found)


def refuse_newer(database: Store, revision: str = "") -> None:
    """Raise DatabaseTooNew if this code cannot work with the schema: one statement if it can.

    A newer version that has only added to the schema leaves the code of this one alone. `revision`
    is one that this code does not know; empty: the database had a known one when it was opened.
    """
    with database.read() as session:
        _check_newer(cast("SqlSession", session).connection, database.name, revision)


def _check_newer(connection: Connection, name: str, revision: str) -> None:
    lowest = lowest_code(connection)
    if lowest is None:
        if revision:
            raise DatabaseTooNew(name, revision)
    elif lowest > max(map(int, KNOWN)):  # the last one may have a smaller number
        found = revision or revision_of(connection)
        raise DatabaseTooNew(name, found, HEAD, f"{lowest:04}")


def record_lowest() -> str:
    """Return the statement that records the oldest code, after an upgrade to HEAD."""
    return (
        f"INSERT INTO flowengine_counter (name, value) VALUES ('{_LOWEST_ROW}', {int(LOWEST)}) "
        "ON CONFLICT (name) DO UPDATE SET value = excluded.value"
    )


def upgrade_schema(database: Database) -> tuple[str, str]:
    """Upgrade the schema; return the revision before and after."""
    is_in_memory = not database.has_server and database.file is None
    if is_in_memory and _copy_first_into(cast("SqliteDatabase", database)):
        return "", HEAD
    for number in range(_MOST_TRIES):
        if number:
            time.sleep(random.uniform(0.2, 1.0))
        try:
            before = _upgrade(database)
        except OperationalError as problem:
            if not is_locked(problem):
                raise
            continue
        return before, HEAD if not before or before in KNOWN else before
    raise StoreError(
        f"the schema of {database.name} cannot be upgraded: other transactions have locked its "
        "tables; nothing was changed: end long transactions (pg_stat_activity), and try again"
    )


def _upgrade(database: Database) -> str:
    """Upgrade the schema; return the revision before."""
    with database.write() as session:
        connection = session.connection
        if database.has_server:
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_lock_key(database.scope)})"))
        if database.schema:
            _create_schema(connection, database.schema)
        before = revision_of(connection)
        if before and before not in KNOWN:
            _check_newer(connection, database.name, before)
            return before  # an old process that starts with an upgrade, beside new ones
        if before == HEAD:
            return before
        if not before:
            # The same schema as after all migrations, which a test checks. Alembic takes longer to
            # import than most first runs take.
            for statement in create_statements(connection.dialect):
                connection.exec_driver_sql(statement)
            _stamp(connection)
        else:
            if database.has_server:
                connection.exec_driver_sql(LOCK_TIMEOUT)
            migrate(connection)
        connection.exec_driver_sql(record_lowest())
    return before


_first: SqliteDatabase | None = None  #: in memory, with our tables and no rows
_copying = threading.Lock()  #: a second copy would remove rows that were written after the first


def _copy_first_into(database: SqliteDatabase) -> bool:
    """Copy the first database in memory of this process; False if this one is not empty.

    A suite of tests creates a database for each test: a copy takes 2 ms, the statements 18.
    """
    global _first
    with _copying:
        with database.read() as session:
            if session.connection.exec_driver_sql("SELECT 1 FROM sqlite_master").first():
                return False
        if _first is None:
            first = type(database)("sqlite://")
            atexit.register(first.close)  # Python 3.13 warns of open connections
            _upgrade(first)
            _first = first
        _first.copy_to(database)
    return True


def _lock_key(scope: str) -> str:
    """Return the key of the lock: all schemas of a database share its advisory locks."""
    return f"{_LOCK}, {zlib.crc32(scope.encode()) - 2**31}" if scope else str(_LOCK)


def _create_schema(connection: Connection, schema: str) -> None:
    # Not IF NOT EXISTS, which needs the right to create one even if it is there.
    known = text("SELECT 1 FROM pg_namespace WHERE nspname = :schema")
    if connection.execute(known, {"schema": schema}).scalar() is None:
        connection.execute(text(f'CREATE SCHEMA "{schema}"'))


_statements: dict[str, list[str]] = {}


def create_statements(dialect: Dialect) -> list[str]:
    """Return the statements that create all tables.

    They are rendered once per process: a suite of tests creates a database for each test.
    """
    if dialect.name not in _statements:
        rendered: list[str] = []

        def render(ddl: ExecutableDDLElement, *_: object, **__: object) -> None:
            rendered.append(str(ddl.compile(dialect=dialect)))

        metadata.create_all(MockConnection(dialect, render), checkfirst=False)
        if dialect.name == "postgresql":
            rendered += keys_made_last()
        _statements[dialect.name] = rendered
    return _statements[dialect.name]


def _stamp(connection: Connection) -> None:
    """Write the revision as Alembic does, so that it can upgrade from here."""
    for statement in stamp_statements():
        connection.exec_driver_sql(statement)


def stamp_statements() -> list[str]:
    key = f"CONSTRAINT {VERSION_TABLE}_pkc PRIMARY KEY (version_num)"
    return [
        f"CREATE TABLE {VERSION_TABLE} (version_num VARCHAR(32) NOT NULL, {key})",
        f"INSERT INTO {VERSION_TABLE} VALUES ('{HEAD}')",
    ]


def migrate(connection: Connection) -> None:
    """Apply the missing migrations."""
    from alembic import command  # slow to import, and mostly not needed

    config = alembic_config()
    config.attributes["connection"] = connection
    with _alembic:
        command.upgrade(config, "head")


def alembic_config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    return config

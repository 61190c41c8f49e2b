"""All rows of a database as JSON, and back into a database of the schema they were taken from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, MetaData, Table, insert, select, text

from flowengine.store import Database, migrations, upgrade_schema
from flowengine.store.migrations import HEAD, VERSION_TABLE
from flowengine.store.tables import metadata

Rows: TypeAlias = dict[str, dict[str, list[Any]]]  #: by table: its columns, and its rows

_LEFT_OUT = {"flowengine_lock"}  #: belongs to the watchdog that recorded


def take(database: Database) -> Rows:
    """Return the rows of every table that has some."""
    found: Rows = {}
    with database.read() as connection:
        for name, table in metadata.tables.items():
            rows = [list(row) for row in connection.execute(select(table))]
            if rows and name not in _LEFT_OUT:
                found[name] = {"columns": [column.name for column in table.columns], "rows": rows}
    return found


def load(url: str, schema: str, rows: Rows) -> None:
    """Bring a database without runs to the recorded schema, insert rows, and upgrade it."""
    database = Database(url)
    try:
        upgrade_schema(database)
        with database.write() as session:
            connection = session.connection
            tables = metadata if schema == HEAD else _earlier(connection, schema)
            for name, table in rows.items():
                if name in tables.tables:
                    insert_rows(connection, tables.tables[name], table)
        upgrade_schema(database)
    finally:
        database.close()


def _earlier(connection: Connection, revision: str) -> MetaData:
    """Replace today's tables by those of an earlier schema."""
    metadata.drop_all(connection)
    connection.execute(text(f"DROP TABLE {VERSION_TABLE}"))
    migrate_to(connection, revision)
    found = MetaData()
    found.reflect(connection)
    return found


def migrate_to(connection: Connection, revision: str) -> None:
    """Apply the migrations up to a revision."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def insert_rows(connection: Connection, target: Table, table: dict[str, list[Any]]) -> None:
    """Insert rows; a column that the schema does not have is left out."""
    rows = [
        {column: value for column, value in pairs if column in target.columns}
        for row in table["rows"]
        if (pairs := list(zip(table["columns"], row, strict=True)))
    ]
    connection.execute(insert(target), rows)

"""All rows of a database as JSON, and back into a database of the schema they were taken from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, MetaData, Table, insert, inspect, select

from flowengine.store import Database, migrations, upgrade_schema
from flowengine.store.migrations import HEAD
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
    """Make a database of the recorded schema with these rows, and bring it to today's."""
    database = Database(url)
    try:
        if schema == HEAD:
            upgrade_schema(database)
        with database.write() as connection:
            if schema != HEAD:
                _migrate(connection, schema)
            for name, table in rows.items():
                _insert(connection, name, table)
        upgrade_schema(database)
    finally:
        database.close()


def _migrate(connection: Connection, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def _insert(connection: Connection, name: str, table: dict[str, list[Any]]) -> None:
    """Insert rows; a column or table that the schema no longer has is left out."""
    if not inspect(connection).has_table(name):
        return
    target = Table(name, MetaData(), autoload_with=connection)
    rows = [
        {column: value for column, value in pairs if column in target.columns}
        for row in table["rows"]
        if (pairs := list(zip(table["columns"], row, strict=True)))
    ]
    connection.execute(insert(target), rows)

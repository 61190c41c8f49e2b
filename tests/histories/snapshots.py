"""All rows of a database as JSON, and back into a database of the schema they were taken from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, MetaData, Table, insert, select

from flowengine.store import Database, migrations, upgrade_schema
from flowengine.store.tables import metadata

Rows: TypeAlias = dict[str, dict[str, list[Any]]]  #: by table: its columns, and its rows

_LEFT_OUT = {"flowengine_lock"}  #: belongs to the watchdog that recorded
_OF_SCHEMA = "schema.lowest"  #: a counter that belongs to the revision


def take(database: Database) -> Rows:
    """Return the rows of every table that has some."""
    found: Rows = {}
    with database.read() as connection:
        for name, table in metadata.tables.items():
            rows = [list(row) for row in connection.execute(select(table))]
            rows = [row for row in rows if row[0] != _OF_SCHEMA]
            if rows and name not in _LEFT_OUT:
                found[name] = {"columns": [column.name for column in table.columns], "rows": rows}
    return found


def create(url: str, revision: str) -> MetaData:
    """Give an empty database the tables of a revision, and return them."""
    database, tables = Database(url), MetaData()
    try:
        with database.write() as session:
            migrate_to(session.connection, revision)
            tables.reflect(session.connection)
    finally:
        database.close()
    return tables


def load(url: str, tables: MetaData, rows: Rows) -> None:
    """Insert rows into the tables of their revision, and upgrade the database."""
    database = Database(url)
    try:
        with database.write() as session:
            for name, table in rows.items():
                if name in tables.tables:
                    insert_rows(session.connection, tables.tables[name], table)
        upgrade_schema(database)
    finally:
        database.close()


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

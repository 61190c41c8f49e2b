"""The store: rows in PostgreSQL or SQLite.

`Database(url)` opens a backend (`postgres/`, `sqlite/`). The layers above use it as a `Store`, and
inside its transactions a `Session` with the operations on rows (`protocol`). `tables` is the
schema, `commits` the typed plan of a commit, and `schema_upgrade` brings a database up to date.
"""

from flowengine.store.database import Database
from flowengine.store.protocol import Session, Store
from flowengine.store.schema_upgrade import ensure_schema, refuse_newer, upgrade_schema

__all__ = ["Database", "Session", "Store", "ensure_schema", "refuse_newer", "upgrade_schema"]

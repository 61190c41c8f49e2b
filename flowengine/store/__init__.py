"""The store: rows in PostgreSQL or SQLite.

`Database(url)` opens a backend (`postgres/`, `sqlite/`), a `Session` has the operations on rows,
`tables` the schema, `commits` the typed plan of a commit, and `schema_upgrade` brings a database
up to date.
"""

from flowengine.store.database import Database
from flowengine.store.schema_upgrade import ensure_schema, upgrade_schema
from flowengine.store.session import Session

__all__ = ["Database", "Session", "ensure_schema", "upgrade_schema"]

"""The store: rows in PostgreSQL or SQLite, behind one protocol.

`protocol` is the seam that the engine uses. `Database(url)` opens a backend (`postgres/`,
`sqlite/`), `session` has the operations on rows, `tables` the schema, `commits` the typed plan of
a commit, and `schema_upgrade` brings a database up to date.
"""

from flowengine.store.database import Database
from flowengine.store.protocol import Session, Store
from flowengine.store.schema_upgrade import ensure_schema, upgrade_schema

__all__ = ["Database", "Session", "Store", "ensure_schema", "upgrade_schema"]

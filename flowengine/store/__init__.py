"""The store: SQL is where the truth is.

`tables` is the schema, `database` opens it and makes transactions, `upgrading` brings it
up to date. `runs`, `steps`, `tasks` and `servers` turn rows into records and back; they
are given a connection and never commit: what belongs together is committed together, by
the engine.
"""

from flowengine.store.database import Database
from flowengine.store.schema_upgrade import ensure_schema, upgrade_schema

__all__ = ["Database", "ensure_schema", "upgrade_schema"]

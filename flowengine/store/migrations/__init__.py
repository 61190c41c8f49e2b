"""The schema's history.

`HEAD` is the revision that this package works with. Comparing it with the database needs no
Alembic, which is slow to import; a test compares it with the newest migration.
"""

HEAD = "0003"
KNOWN = ("0001", "0002", "0003")  #: every revision this package can upgrade from, oldest first
VERSION_TABLE = "flowengine_alembic_version"

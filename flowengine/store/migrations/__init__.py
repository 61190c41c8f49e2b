"""The schema's history.

`HEAD` is the revision that this package works with. Comparing it with the database needs no
Alembic, which is slow to import; a test compares it with the newest migration.
"""

HEAD = "0027"
#: Every revision this package can upgrade from, oldest first.
KNOWN = (
    *("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0010", "0011"),
    *("0012", "0013", "0014", "0015", "0016", "0017", "0018", "0019", "0020", "0021"),
    *("0022", "0023", "0024", "0025", "0026", "0027"),
)
#: The oldest code that can work with this schema, by the largest number in its `KNOWN`. A migration
#: that only adds leaves it as it is: workers of that code go on beside the new ones. A migration
#: that takes away raises it to that of the code which did without: in a new minor version only.
LOWEST = "0025"
VERSION_TABLE = "flowengine_alembic_version"

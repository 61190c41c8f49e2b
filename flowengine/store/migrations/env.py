"""Run by Alembic. The connection is handed over, in a transaction that holds the lock."""

from alembic import context

from flowengine.store.migrations import VERSION_TABLE
from flowengine.store.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, version_table=VERSION_TABLE)
with context.begin_transaction():
    context.run_migrations()

"""Run by Alembic, on a connection whose transaction holds the upgrade lock."""

from alembic import context

from flowengine.store.migrations import VERSION_TABLE
from flowengine.store.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, version_table=VERSION_TABLE)
with context.begin_transaction():
    context.run_migrations()

"""Run by Alembic, on a connection whose transaction holds the upgrade lock, or to print SQL."""

from typing import Any

from alembic import context

from flowengine.store.migrations import VERSION_TABLE
from flowengine.store.tables import metadata

options: dict[str, Any] = {"target_metadata": metadata, "version_table": VERSION_TABLE}
if context.is_offline_mode():
    context.configure(dialect_name=context.config.attributes["dialect"], **options)
else:
    context.configure(connection=context.config.attributes["connection"], **options)
with context.begin_transaction():
    context.run_migrations()

"""An engine for an agent that is given the address of a database."""

from __future__ import annotations

from dataclasses import replace

from flowengine.agents import agents_of
from flowengine.engine import Engine
from flowengine.settings import Settings
from flowengine.store import Database, ensure_schema


def connected_engine(database_url: str, settings: Settings | None) -> Engine:
    """Return an engine on a database; without a URL, on the one of the settings."""
    settings = settings or Settings.from_environment()
    if database_url:
        settings = replace(settings, database_url=database_url)
    database = Database(settings.database_url, schema=settings.schema)
    try:
        ensure_schema(database)
        engine = Engine(database, settings=settings)
        agents_of(engine)
        return engine
    except BaseException:
        database.close()
        raise

"""The engine of requests that change something."""

from __future__ import annotations

from functools import cache
from typing import Any

from flowengine.engine import Engine
from flowengine.settings import Settings
from flowengine.store import Database
from flowengine.web.async_queries import queries_of


def engine_of(app: Any) -> Engine:
    """Return the engine of the Celery app, which wakes its workers; else one on its database."""
    plugin = getattr(app, "flowengine", None)
    if plugin is not None:
        engine: Engine = plugin.engine
        return engine
    return _own_engine(queries_of(app).settings)


def with_shared_breakers(engine: Engine, app: Any) -> None:
    """Let the engine read the states of breakers from the Redis that the app shares them by."""
    from flowengine.assembly.plugin import redis_of  # imports Celery
    from flowengine.worker import CircuitBreakers

    CircuitBreakers(engine.settings, redis_of(app)).obey(engine.breakers)


@cache
def _own_engine(settings: Settings) -> Engine:
    return Engine(Database(settings.database_url, schema=settings.schema), settings=settings)

"""The embedded engine of a Django process, for projects without Celery.

It registers itself in the database when it is created. Inside a transaction on a SQLite file it
would wait for the write lock that its own thread holds. A start there uses an engine without
workers; the embedded one is created after the commit.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from django.db import connections
from sqlalchemy import make_url

import flowengine
from flowengine.assembly import EngineLauncher, default_engine
from flowengine.assembly.embedded import has_default_engine
from flowengine.authoring import Launcher, set_launcher_source
from flowengine.contrib.django.project import own_setting
from flowengine.contrib.django.transactions import has_runs
from flowengine.dispatch import NullNotifier
from flowengine.engine import Engine
from flowengine.settings import Settings
from flowengine.store import Database, ensure_schema


def install() -> None:
    """Replace the default launcher; a `FlowEngine(app)` stays."""
    source = set_launcher_source(None)
    is_default = source is flowengine._default_launcher
    set_launcher_source(embedded_launcher if is_default else source)


def embedded_launcher() -> Launcher:
    in_transaction = any(c.in_atomic_block for c in connections.all(initialized_only=True))
    if has_default_engine() or not in_transaction:
        return EngineLauncher(default_engine())
    connection = connections[own_setting("DATABASE")]
    runs = make_url(Settings.from_environment().database_url)
    if connection.in_atomic_block and has_runs(connection, runs):
        return EngineLauncher(_without_workers())
    # Celery closes Django's connections in the thread that creates a worker: of this thread they
    # have an open transaction, which would be rolled back.
    with ThreadPoolExecutor(1) as other_thread:
        return EngineLauncher(other_thread.submit(default_engine).result())


class _CreatesEngine(NullNotifier):
    """Creates the embedded engine when there is work for it."""

    def notify(self, due: Mapping[str, int]) -> None:
        default_engine().notifier.notify(due)


@functools.cache
def _without_workers() -> Engine:
    settings = Settings.from_environment()
    database = Database(settings.database_url, schema=settings.schema)
    ensure_schema(database, upgrade=False)  # `manage.py migrate` has done it
    return Engine(database, notifier=_CreatesEngine(), settings=settings)

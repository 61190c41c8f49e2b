"""The database of a command: opened as it is, or upgraded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

import flowengine
from flowengine.authoring import set_launcher_source
from flowengine.cli import configuration
from flowengine.engine import Engine
from flowengine.settings import Settings
from flowengine.store import Database, ensure_schema, upgrade_schema
from flowengine.store.database_url import with_connect_timeout

_CONNECT_SECONDS = 4


def _database(settings: Settings) -> Database:
    """Open the database of the settings. A server that does not answer is an error soon."""
    url = with_connect_timeout(settings.database_url, _CONNECT_SECONDS)
    return Database(url, schema=settings.schema)


@contextmanager
def open_engine() -> Iterator[Engine]:
    """Open the existing database; neither create nor upgrade it."""
    settings = configuration.settings()
    configuration.require_shared_database()
    database = _database(settings)
    if database.file is not None and not database.file.exists():
        raise click.ClickException(
            f"there is no database {database.name} yet: `flowengine run` creates it, or set "
            "another in FLOWENGINE_DATABASE_URL, or name the Celery app that has one with -A"
        )
    ensure_schema(database, upgrade=False)
    engine = Engine(database, settings=settings)
    try:
        yield engine
    finally:
        engine.close()


@contextmanager
def starting_engine(settings: Settings) -> Iterator[Engine]:
    """Open the database, created if needed, with an engine that executes no step.

    The process of `run --no-wait` ends at once. If it began a step, it would have to wait for
    the end of it: Python joins the threads of pools at its exit.
    """
    from flowengine.assembly import EngineLauncher  # imports Celery

    configuration.require_shared_database()
    database = _database(settings)
    ensure_schema(database)
    engine = Engine(database, settings=settings)
    source = set_launcher_source(None)
    is_default = source is flowengine._default_launcher  # a `FlowEngine(app)` of a module stays
    set_launcher_source((lambda: EngineLauncher(engine)) if is_default else source)
    try:
        yield engine
    finally:
        set_launcher_source(source)
        engine.close()


@contextmanager
def acting_engine() -> Iterator[Engine]:
    """Like `open_engine`, for a command that changes a run: it wakes the workers of the app."""
    installed = getattr(configuration.celery_app(), "flowengine", None)
    fleet: Engine | None = getattr(installed, "engine", None)
    if fleet is None:
        with open_engine() as engine:
            yield engine
        return
    configuration.require_database()
    yield fleet
    fleet.notifier.flush()


def upgrade() -> None:
    configuration.require_database()
    database = _database(configuration.settings())
    before, after = upgrade_schema(database)
    database.close()
    if before == after:
        click.echo(f"{database.name} is up to date ({after})")
    else:
        click.echo(f"{database.name} upgraded from {before or 'nothing'} to {after}")

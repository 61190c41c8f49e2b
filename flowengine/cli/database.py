"""The database of a command: opened as it is, or upgraded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

import flowengine
from flowengine.authoring import set_launcher_source
from flowengine.cli import configuration
from flowengine.cli.streams import json_of
from flowengine.engine.queries import RunQueries
from flowengine.errors import DatabaseTooNew, DatabaseTooOld
from flowengine.payload_codecs import codec_of
from flowengine.settings import Settings
from flowengine.store import Database, codec, ensure_schema, refuse_newer, upgrade_schema
from flowengine.store.database_url import with_connect_timeout
from flowengine.store.migrations import HEAD, KNOWN
from flowengine.store.schema_upgrade import revision_of

if TYPE_CHECKING:
    from flowengine.engine import Engine

_CONNECT_SECONDS = 4


def _database(settings: Settings) -> Database:
    """Open the database of the settings. A server that does not answer is an error soon."""
    url = with_connect_timeout(settings.database_url, _CONNECT_SECONDS)
    return Database(url, schema=settings.schema)


def _existing_database() -> tuple[Database, Settings]:
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
    return database, settings


@contextmanager
def open_engine() -> Iterator[Engine]:
    """Open the existing database; neither create nor upgrade it."""
    from flowengine.engine import Engine

    database, settings = _existing_database()
    engine = Engine(database, settings=settings)
    try:
        yield engine
    finally:
        engine.close()


@contextmanager
def open_queries() -> Iterator[tuple[RunQueries, Database]]:
    """Open the same for a command that reads runs, without the parts that change them."""
    database, settings = _existing_database()
    codec.use_payload_codec(codec_of(settings))
    try:
        yield RunQueries(database, settings.tenant), database
    finally:
        database.close()


@contextmanager
def starting_engine(settings: Settings) -> Iterator[Engine]:
    """Open the database, created if needed, with an engine that executes no step.

    The process of `run --no-wait` ends at once. If it began a step, it would have to wait for
    the end of it: Python joins the threads of pools at its exit.
    """
    from flowengine.assembly import EngineLauncher  # imports Celery
    from flowengine.engine import Engine

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


def current(*, as_json: bool) -> None:
    """Print the revision of the schema and whether this code can work with it."""
    configuration.require_database()
    database = _database(configuration.settings())
    revision, problem = _revision_of(database), ""
    try:
        if revision:
            ensure_schema(database, upgrade=False)
        else:
            raise DatabaseTooOld(database.name, "", HEAD)
    except (DatabaseTooOld, DatabaseTooNew) as refusal:
        problem = str(refusal)
    finally:
        database.close()
    if as_json:
        shown: dict[str, object] = {"database": database.name, "schema": revision or None}
        shown |= {"code": HEAD, "version": flowengine.__version__}
        shown |= {"compatible": not problem, "problem": problem or None}
        click.echo(json_of(shown))
    else:
        is_newer = not problem and revision != HEAD
        fits = "no" if problem else "yes, it has only more" if is_newer else "yes"
        click.echo(f"database    {database.name}")
        click.echo(f"schema      {revision or 'none'}")
        click.echo(f"this code   {HEAD} (flowengine {flowengine.__version__})")
        click.echo(f"compatible  {fits}")
    if problem:
        raise click.ClickException(problem)


def _revision_of(database: Database) -> str:
    if database.file is not None and not database.file.exists():
        return ""  # a query would create it
    with database.read() as session:
        return revision_of(session.connection)


def print_upgrade(before: str | None) -> None:
    """Print the statements of the upgrade; without `before` from the revision of the database."""
    from flowengine.store.schema_sql import upgrade_sql

    configuration.require_database()
    settings = configuration.settings()
    database = _database(settings)
    try:
        found = _revision_of(database) if before is None else before.removeprefix("none")
        if before is None and found and found not in KNOWN:
            refuse_newer(database, found)
            click.echo(f"-- revision {found}: newer than {HEAD}, nothing to upgrade")
            return
        click.echo(upgrade_sql(database.engine.dialect, found, settings.schema), nl=False)
    finally:
        database.close()


def upgrade() -> None:
    configuration.require_database()
    database = _database(configuration.settings())
    before, after = upgrade_schema(database)
    database.close()
    if after != HEAD:
        click.echo(
            f"{database.name} has revision {after}, which is newer than {HEAD} of this flowengine "
            "and has only more: nothing to upgrade"
        )
    elif before == after:
        click.echo(f"{database.name} is up to date ({after})")
    else:
        click.echo(f"{database.name} upgraded from {before or 'nothing'} to {after}")

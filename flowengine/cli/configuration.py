"""The settings of a command: of the environment, or of the Celery app that -A names.

They are kept in the context of click, which the commands of a group share. The app is imported
when a command first needs a setting: the help of a command imports nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from flowengine.cli import project_file
from flowengine.settings import Settings

_NAME, _APP, _SETTINGS = "flowengine.app_name", "flowengine.app", "flowengine.settings"


def name_app(context: click.Context, name: str | None) -> None:
    """Have commands use the settings of the app of this name; None: of the environment."""
    context.meta[_NAME] = name


def give_app(context: click.Context, app: Any) -> None:
    """Do the same with an app that is imported: `celery -A` has done it."""
    context.meta[_NAME] = app.main or "of Celery"
    context.meta[_APP] = app


def celery_app() -> Any | None:
    """Return the app that the command names, or None."""
    meta = click.get_current_context().meta
    name = meta.get(_NAME)
    if name is None:
        return None
    if _APP not in meta:
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.insert(0, here)
        from flowengine.assembly.apps import app_named
        from flowengine.cli.targets import author_errors

        with author_errors(f"the app {name} cannot be imported"):
            meta[_APP] = app_named(name)
    return meta[_APP]


def settings() -> Settings:
    """Return the settings of the command."""
    meta = click.get_current_context().meta
    if _SETTINGS not in meta:
        app = celery_app()
        if app is None:
            meta[_SETTINGS] = project_file.settings()
        else:
            from flowengine.assembly.apps import settings_of

            meta[_SETTINGS] = settings_of(app)
    found: Settings = meta[_SETTINGS]
    return found


def require_database() -> None:
    """Refuse an app that names no database: a file in this directory would not be its own."""
    if (app := celery_app()) is not None:
        from flowengine.assembly.app_addresses import require_database

        require_database(app, settings(), click.get_current_context().meta[_NAME])


def require_shared_database() -> None:
    """Refuse such an app if its broker is on a network: its workers use no file of this place."""
    if (app := celery_app()) is not None:
        from flowengine.assembly.app_addresses import require_shared_database

        require_shared_database(app, settings(), click.get_current_context().meta[_NAME])


def database_url() -> str:
    """Return the URL for an error message: nothing is imported, nothing fails."""
    context = click.get_current_context(silent=True)
    found = context.meta.get(_SETTINGS) if context else None
    return (found or Settings.from_environment()).database_url

"""`flowengine work`: serve a folder of documents from one process, until it is told to end."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from flowengine.assembly.embedded import close_default_engine, default_server
from flowengine.authoring import event_facet_names
from flowengine.cli import configuration
from flowengine.cli.targets import load_modules, setting_modules
from flowengine.program.standard import is_built_in
from flowengine.sdk.stop_signals import stopped_by_signals
from flowengine.secret_keys import set_secret_key_source
from flowengine.worker.published_workflows import WorkflowPublisher


def work(folder: str | None, modules: Sequence[str], name: str, given: Mapping[str, Any]) -> None:
    """Serve until a signal; the settings that are `given` go before those of the environment."""
    if configuration.celery_app() is not None:
        raise click.UsageError("the app of -A has workers of its own: celery -A APP worker")
    settings = configuration.settings()
    folder = folder or settings.workflows
    if folder and not Path(folder).is_dir():
        raise click.ClickException(f"there is no folder {folder} of documents")
    settings = replace(settings, workflows=folder, **given)
    load_modules((*setting_modules(settings), *modules))
    facets = [each for each in event_facet_names() if not is_built_in(each)]
    if not folder and not facets:
        raise click.UsageError("name a FOLDER of documents, or a --module with event facets")
    if settings.secret_keys:
        set_secret_key_source(lambda: settings.secret_keys)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("flowengine").setLevel(logging.INFO)
    stopped, is_alone = threading.Event(), threading.Event()

    def end_alone() -> None:
        is_alone.set()
        stopped.set()

    name = name or f"work@{socket.gethostname()}"
    with stopped_by_signals(stopped.set):
        server = default_server(settings, name, end_alone)
        try:
            WorkflowPublisher().publish(server.engine)
            count = f"{len(facets)} facet" + ("" if len(facets) == 1 else "s")
            what = f"{folder}, {count}" if folder else count
            where = f"database {server.database.name}, all task lists, no broker"
            click.echo(f"worker {name} serves {what}: {where}")
            stopped.wait()
            server.finish()
        finally:
            close_default_engine()
    click.echo(f"worker {name} has ended")
    if is_alone.is_set():
        sys.exit(1)

"""The tables of the catalogue: everything that can be started by name, and what is closed."""

from __future__ import annotations

from flowengine.store.columns import Table, id_column, name_column, text_column, time_column


class WorkflowRow(Table):
    """A workflow as the worker that started last has published it."""

    name: str = name_column(primary_key=True)
    program_hash: str | None = id_column(default=None)  #: None: it was never free of problems
    digest: str = id_column()  #: of everything here that its author has written
    source: str = name_column("", 16)  #: python, afl, json, document, pushed
    place: str = text_column("")  #: the file, and the line
    description: str = text_column("")
    inputs: str = text_column("{}")  #: their JSON Schema
    problems: str | None = text_column()  #: of the newest version, as JSON; the program is older
    created: int = time_column()
    updated: int = time_column()


class ClosedRow(Table):
    """A workflow that is closed for new starts."""

    workflow: str = name_column(primary_key=True)
    actor: str = name_column("")
    reason: str = text_column("")
    closed: int = time_column()

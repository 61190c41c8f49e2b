"""Publishes the workflows of this process in the catalogue; the later start wins.

A module may be imported after the process has started, so each pass looks for new ones. A workflow
that cannot be traced is published with its problem.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from flowengine.authoring import LoadedWorkflow, Workflow, all_workflows, loaded_workflows
from flowengine.engine import Engine
from flowengine.engine.publication_drafts import Publication
from flowengine.errors.documents import DocumentProblem
from flowengine.store.failures import is_unavailable

log = logging.getLogger("flowengine")

SOURCE = "python"


def trace_workflows() -> None:
    """Trace the workflows of this process, before it forks.

    Tracing runs code of the author. In a thread it might hold a lock when the process forks, and
    the child would wait for that lock for ever.
    """
    for flow in all_workflows():
        with suppress(Exception):  # published with the workflow, as its problem
            flow.program()


class WorkflowPublisher:
    def __init__(self) -> None:
        self._done: dict[str, object] = {}  #: by name of the workflow

    def publish(self, engine: Engine) -> None:
        """Publish what is new; without it, nothing is asked of the database."""
        found = {flow.name: flow for flow in all_workflows()}
        loaded = {each.name: each for each in loaded_workflows()}
        known: dict[str, object] = {**loaded, **found}
        new = [name for name, each in known.items() if self._done.get(name) is not each]
        if not new:
            return
        self._done |= {name: known[name] for name in new}  # a refused one is told once
        publications = [*_of_python(found[n] for n in new if n in found)]
        publications += [_of_program(loaded[n]) for n in new if n not in found]
        try:
            engine.catalogue.publish(publications)
        except Exception as problem:
            if is_unavailable(problem):
                self._done = {}
                raise
            log.exception(
                "workflows cannot be published: %s; they cannot be started by name",
                problem,
                extra={"action": "workflows_refused"},
            )


def _of_python(flows: Iterator[Workflow[..., Any]]) -> Iterator[Publication]:
    for flow in flows:
        definition = flow.definition
        file = f"{definition.fn.__module__.replace('.', '/')}.py"
        place = f"{file}:{definition.location.line}"
        about = (definition.fn.__doc__ or "").strip().partition("\n\n")[0]
        try:
            yield Publication(flow.name, flow.program(), SOURCE, place, about)
        except Exception as problem:  # the body of the author was traced
            what = f"{type(problem).__name__}: {problem}"
            found = DocumentProblem(file, definition.location.line, 1, what)
            yield Publication(flow.name, None, SOURCE, place, about, [found])


def _of_program(loaded: LoadedWorkflow) -> Publication:
    return Publication(loaded.name, loaded.program, loaded.source, loaded.place)

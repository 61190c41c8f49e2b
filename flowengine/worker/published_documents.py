"""Publishes the documents of a folder, with their schedules, and again when the folder changes.

The folder is polled: notifications of changes miss network disks and swapped symbolic links. A
document that becomes broken keeps its last good version, and the schedules of that; a removed one
starts nothing more. Runs keep their program.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flowengine.engine import Engine
from flowengine.engine.catalogue import Publication, Published
from flowengine.errors import UnknownSchedule
from flowengine.store.database import is_unavailable

if TYPE_CHECKING:
    from flowengine.documents import CompiledDocument
    from flowengine.worker.document_folder import Documents

log = logging.getLogger("flowengine")

SOURCE = "document"  #: of workflows of a folder, and of schedules of all documents
PUSHED = "pushed"  #: of workflows that `flowengine push` has published
POLL_SECONDS = 5.0


class DocumentPublisher:
    """Publishes what one process finds in the folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._state: object = None
        self._polled = float("-inf")
        self._schedules: dict[str, set[str]] = {}  #: names, by document
        self._told: set[str] = set()  #: problems in the log

    def publish(self, engine: Engine) -> None:
        """Publish what has changed; without a folder, nothing is done."""
        if not self._folder or time.monotonic() - self._polled < POLL_SECONDS:
            return
        self._polled = time.monotonic()
        # Here: a worker without a folder loads neither PyYAML nor the models of documents.
        from flowengine.worker.document_folder import folder_state, load_folder

        try:
            state = folder_state(self._folder)
            if state == self._state:
                return
            documents = load_folder(self._folder)
        except OSError as problem:  # a disk that is away has not lost its documents
            self._tell([f"the folder {self._folder} cannot be read: {problem.strerror}"])
            return
        self._tell([str(problem) for problem in documents.all_problems()])
        # A folder that is empty at the start may be that of a disk which is not mounted yet.
        is_known = self._state is not None or bool(state)
        publish_documents(engine, documents, SOURCE, self._folder if is_known else "")
        for document in documents.compiled.values():
            names = {schedule.name or document.name for schedule in document.schedules}
            for gone in self._schedules.get(document.name, set()) - names:
                _remove(engine, gone)
            self._schedules[document.name] = names
        self._state = state  # after all: an unreachable database is tried again

    def _tell(self, problems: list[str]) -> None:
        for problem in problems:
            if problem not in self._told:
                log.error("document refused: %s", problem, extra={"action": "document_refused"})
        self._told = set(problems)


def publish_documents(
    engine: Engine, documents: Documents, source: str, folder: str = ""
) -> Published:
    """Publish documents and their schedules; remove those that the folder has no more."""
    found = list(_publications(documents, source))
    own = f"{os.path.abspath(folder)}/" if folder else ""
    changes = engine.catalogue.publish(found, source=source, folder=own)
    for document in documents.compiled.values():
        _put_schedules(engine, document)
    if changes.removed:
        for schedule in engine.schedules.list():
            if schedule.source == SOURCE and schedule.workflow in changes.removed:
                _remove(engine, schedule.name)
    return changes


def _publications(documents: Documents, source: str) -> Iterator[Publication]:
    for name, document in documents.compiled.items():
        place = os.path.abspath(document.file)
        yield Publication(name, document.program, source, place, document.description)
    for name, problems in documents.problems.items():
        place = os.path.abspath(problems[0].file)
        yield Publication(name, None, source, place, problems=problems)


def _put_schedules(engine: Engine, document: CompiledDocument) -> None:
    for schedule in document.schedules:
        try:
            engine.schedules.put(document.program, document.name, schedule, source=SOURCE)
        except Exception as problem:
            if is_unavailable(problem):
                raise
            log.error(
                "schedule of %s cannot be published: %s",
                document.file,
                problem,
                extra={"action": "schedule_refused"},
            )


def _remove(engine: Engine, schedule: str) -> None:
    try:
        engine.schedules.remove(schedule)
    except UnknownSchedule:
        return

"""Publishes the schedules of a folder of documents, and again when the folder changes.

The folder is polled: notifications of changes miss network disks and swapped symbolic links. A
document that becomes broken keeps the schedules of its last good version; the schedules of a
removed one are removed. Runs keep their program.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from flowengine.engine import Engine
from flowengine.errors import UnknownSchedule
from flowengine.store.database import is_unavailable

if TYPE_CHECKING:
    from flowengine.documents import CompiledDocument

log = logging.getLogger("flowengine")

SOURCE = "document"
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
        for document in documents.compiled.values():
            self._put(engine, document)
        for name in set(self._schedules) - {*documents.compiled, *documents.problems}:
            for schedule in self._schedules[name]:
                self._remove(engine, schedule)
            del self._schedules[name]
        self._state = state  # after all: an unreachable database is tried again

    def _tell(self, problems: list[str]) -> None:
        for problem in problems:
            if problem not in self._told:
                log.error("document refused: %s", problem, extra={"action": "document_refused"})
        self._told = set(problems)

    def _put(self, engine: Engine, document: CompiledDocument) -> None:
        before = self._schedules.get(document.name, set())
        names = {schedule.name or document.name for schedule in document.schedules}
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
        for gone in before - names:
            self._remove(engine, gone)
        self._schedules[document.name] = names

    def _remove(self, engine: Engine, schedule: str) -> None:
        try:
            engine.schedules.remove(schedule)
        except UnknownSchedule:
            return

"""Publishes the documents of a folder, with their schedules, and again when the folder changes.

The folder is polled: notifications of changes miss network disks and swapped symbolic links. A
document that becomes broken keeps its last good version, and the schedules of that; a removed one
starts nothing more. Runs keep their program. All this has a thread of its own: a slow disk delays
neither the heartbeat nor timers.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from flowengine.engine import Engine
from flowengine.engine.publication_drafts import DOCUMENT, Folder, Publication, Published
from flowengine.store.failures import is_unavailable

if TYPE_CHECKING:
    from flowengine.documents import CompiledDocument
    from flowengine.worker.document_folder import Documents, KnownDocuments

log = logging.getLogger("flowengine")

POLL_SECONDS = 5.0


class DocumentPublisher:
    """Publishes the documents that one process finds in the folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._state: object = None
        self._missing: frozenset[str] = frozenset()  #: documents without a file at the last poll
        self._known: KnownDocuments | None = None
        self._published: dict[str, CompiledDocument] = {}
        self._is_refused = False
        self._told: set[str] = set()  #: problems in the log
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, engine: Callable[[], Engine]) -> None:
        """Publish in a thread until `stop`; without a folder, there is none."""
        if not self._folder:
            return
        # Before the thread: a process that forks during an import has a child that waits for it.
        import flowengine.worker.document_folder  # noqa: F401

        self._thread = threading.Thread(
            target=self._run, args=(engine,), name="flowengine-documents", daemon=True
        )
        self._thread.start()

    def stop(self, seconds: float) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self, engine: Callable[[], Engine]) -> None:
        while not self._stop.is_set():
            try:
                self.publish(engine())
            except Exception as problem:
                # The heartbeat tells of a database that is away.
                if not is_unavailable(problem) and not self._stop.is_set():
                    self._tell([f"{self._folder}: {type(problem).__name__}: {problem}"])
            self._stop.wait(POLL_SECONDS)

    def publish(self, engine: Engine) -> None:
        """Publish what has changed since the last call."""
        if not self._folder:
            return
        # Here: a worker without a folder loads neither PyYAML nor the models of documents.
        from flowengine.worker.document_folder import KnownDocuments, folder_state, load_folder

        self._known = self._known or KnownDocuments()
        try:
            state = folder_state(self._folder)
            if state == self._state and not self._missing and not self._is_refused:
                return
            documents = load_folder(self._folder, self._known)
        except OSError as problem:  # a disk that is away has not lost its documents
            self._tell([f"the folder {self._folder} cannot be read: {problem.strerror}"])
            return
        found = list(_publications(documents, DOCUMENT, self._published))
        folder = None
        # A folder that is empty at the start may be that of a disk which is not mounted yet.
        if self._state is not None or state:
            place = f"{os.path.abspath(self._folder)}/"
            folder = Folder(DOCUMENT, place, self._missing, documents.unlisted)
        changes = engine.catalogue.publish(found, folder)
        self._tell([str(each) for each in (*documents.all_problems(), *changes.refused.values())])
        self._published = {
            name: each for name, each in documents.compiled.items() if name not in changes.refused
        }
        self._is_refused = changes.is_repeatable  # another workflow may give its schedule up
        # After all: an unreachable database is tried again.
        self._state = state
        self._missing = frozenset(changes.missing) - frozenset(changes.removed)

    def _tell(self, problems: list[str]) -> None:
        for problem in problems:
            if problem not in self._told:
                log.error("document refused: %s", problem, extra={"action": "document_refused"})
        self._told = set(problems)


def publish_documents(engine: Engine, documents: Documents, source: str) -> Published:
    """Publish documents and their schedules; others stay."""
    return engine.catalogue.publish(list(_publications(documents, source, {})))


def _publications(
    documents: Documents, source: str, published: dict[str, CompiledDocument]
) -> Iterator[Publication]:
    for name, document in documents.compiled.items():
        place = os.path.abspath(document.file)
        yield Publication(
            *(name, document.program, source, place, document.description),
            schedules=document.schedules,
            is_new=published.get(name) is not document,
        )
    for name, problems in documents.problems.items():
        place = os.path.abspath(problems[0].file)
        yield Publication(name, None, source, place, problems=problems)

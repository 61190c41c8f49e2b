"""The facets that a runner service works for: those of its registry, within its topics.

A claim asks for tasks by name. The names that the default handler serves, or with topics a handler
of a short name, are found by a look at the due tasks of the list; then they are remembered.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from fnmatch import fnmatchcase

from flowengine.engine import Engine
from flowengine.event_loop import event_loop
from flowengine.program.standard import CHILD, EXECUTE
from flowengine.sdk.handlers import Blocking, HandlerTable, run_in_place
from flowengine.worker.handlers import Handler


class ServedFacets:
    """Shared by all threads of a runner."""

    def __init__(self, table: HandlerTable, topics: Sequence[str], execute: Handler) -> None:
        self._table, self._topics, self._execute = table, topics, execute
        self._looking = threading.Lock()
        self._after: tuple[object, ...] | None = None  #: the place where the last look ended

    def serves(self, name: str) -> bool:
        """Whether a qualified name is within the topics; the start of a child run always is."""
        topics = self._topics
        return not topics or name == CHILD or any(fnmatchcase(name, topic) for topic in topics)

    def names(self) -> list[str]:
        names = [name for name in self._table.names() if self._is_claimed(name)]
        return [*names, EXECUTE] if self.serves(EXECUTE) else names

    def _is_claimed(self, name: str) -> bool:
        # A claim of a short name gets tasks of any namespace, also beyond the topics.
        return not self._topics or ("." in name and self.serves(name))

    def served(self) -> list[str]:
        names = {*self._table.registered(), *self._table.met()} if not self._topics else set()
        return sorted({*names, *self.names()})

    def find(self, name: str) -> Handler | None:
        if not self.serves(name):
            return None
        return self._execute if name == EXECUTE else self._table.find(name)

    def find_blocking(self, name: str) -> Handler | None:
        """Return the handler so that its thread waits for it, in the event loop of the process."""
        handler = self.find(name)
        return None if handler is None else Blocking(handler, event_loop().run)

    def find_in_place(self, name: str) -> Handler | None:
        """Return the handler so that it needs no other thread."""
        handler = self.find(name)
        return None if handler is None else Blocking(handler, run_in_place)

    is_empty = False  #: requests to start workflows need no handler

    @property
    def has_async(self) -> bool:
        return self._table.has_async

    @property
    def is_all_async(self) -> bool:
        return False  # starting a run blocks

    # --- the names of due tasks ---

    @property
    def needs_look(self) -> bool:
        """Whether it serves names that a claim cannot ask for before they were seen."""
        if self._table.has_default:
            return True
        return bool(self._topics) and any("." not in name for name in self._table.registered())

    def look(self, engine: Engine, task_list: str) -> None:
        """Look at some due tasks of a list, and remember the names that have a handler."""
        if not self.needs_look or not self._looking.acquire(blocking=False):
            return  # another thread looks
        try:
            with engine.database.read() as session:
                found = session.due_tasks.names(task_list, session.now(), self._after)
            self._after = found.last
            for name in found.names:
                self.find(name)
        finally:
            self._looking.release()

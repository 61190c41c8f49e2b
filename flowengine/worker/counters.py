"""Counters of handled tries, flushed to the server's row at an interval.

A statement for every try would cost as much as the try. A killed process loses the counts since
its last flush: they are shown to people, and decide nothing.
"""

from __future__ import annotations

import logging
import threading

from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import Outcome, Succeeded
from flowengine.store import Database
from flowengine.store.servers import HandledCount

log = logging.getLogger("flowengine")


class HandledCounters:
    """The counts of one process of a server. Shared by all its threads."""

    def __init__(self, database: Database, server_id: str) -> None:
        self._database, self._server_id = database, server_id
        self._lock = threading.Lock()
        self._counts: dict[str, HandledCount] = {}

    def count(self, task: TaskDefinition, outcome: Outcome) -> None:
        with self._lock:
            counted = self._counts.setdefault(task.name, HandledCount(task.name))
            if isinstance(outcome, Succeeded):
                counted.handled += 1
            else:
                counted.not_handled += 1

    def flush(self) -> None:
        """Add the counts since the last flush to the database."""
        with self._lock:
            counts, self._counts = self._counts, {}
        if not counts:
            return
        try:
            with self._database.write() as session:
                session.servers.add_handled(self._server_id, list(counts.values()))
        except Exception as problem:
            log.debug("counters were not flushed: %s", problem)
            self._keep(counts)

    def _keep(self, counts: dict[str, HandledCount]) -> None:
        """Keep counts for the next flush."""
        with self._lock:
            for name, old in counts.items():
                new = self._counts.setdefault(name, HandledCount(name))
                new.handled += old.handled
                new.not_handled += old.not_handled

"""The thread of a working process that repeats its background jobs, and the counters it flushes."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence

from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import Outcome, Succeeded
from flowengine.store import Store
from flowengine.store.servers import HandledCount

log = logging.getLogger("flowengine")

_JOIN_SECONDS = 2.0  # seconds to wait for the job that runs when the process ends


class BackgroundJobs:
    """Calls some functions at an interval, from the first work on."""

    def __init__(self, interval: float, jobs: Sequence[Callable[[], object]]) -> None:
        self._interval, self._jobs = interval, jobs
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._repeat, name="flowengine-background", daemon=True
        )

    def begin(self) -> None:
        """Start the thread, once: a process that never works needs none."""
        if self._thread.ident is None:
            with self._lock:
                if self._thread.ident is None:
                    self._thread.start()

    def _repeat(self) -> None:
        while not self._stop.wait(self._interval):
            for job in self._jobs:
                try:
                    job()
                except Exception as problem:  # the database is unreachable; the next call repeats
                    log.debug("background job failed: %s", problem)

    def end(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_SECONDS)


class HandledCounters:
    """Counts the handled tries of one process of a server. Shared by all its threads.

    A statement for every try would cost as much as the try. A killed process loses the counts
    since its last flush: they are shown to people, and decide nothing.
    """

    def __init__(self, database: Store, server_id: str) -> None:
        self._database, self._server_id = database, server_id
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, bool]] = Counter()  #: by facet, and whether it succeeded

    def count(self, task: TaskDefinition, outcome: Outcome) -> None:
        with self._lock:
            self._counts[task.name, isinstance(outcome, Succeeded)] += 1

    def flush(self) -> None:
        """Add the counts since the last flush to the server's row."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        if not counts:
            return
        names = dict.fromkeys(name for name, _ in counts)
        handled = [HandledCount(name, counts[name, True], counts[name, False]) for name in names]
        try:
            with self._database.write() as session:
                session.servers.add_handled(self._server_id, handled)
        except Exception as problem:
            log.debug("counters were not flushed: %s", problem)
            with self._lock:
                self._counts += counts

"""The thread of a working process that repeats its background jobs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

log = logging.getLogger("flowengine")

_PATIENCE = 2.0  # seconds to wait for the job that runs when the process ends


class BackgroundJobs:
    """Calls some functions at an interval, from the first work on."""

    def __init__(self, interval: float, jobs: Sequence[Callable[[], object]]) -> None:
        self._interval, self._jobs = interval, jobs
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start the thread, once: a process that never works needs none."""
        if self._thread is not None:
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._repeat, name="flowengine-background", daemon=True
                )
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
        if self._thread is not None:
            self._thread.join(_PATIENCE)

"""A thread that does from time to time what a working process owes the others."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

log = logging.getLogger("flowengine")


class BackgroundJobs:
    """Calls some functions, again and again, from the first work on."""

    def __init__(self, interval: float, duties: Sequence[Callable[[], object]]) -> None:
        self._interval, self._duties = interval, duties
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Begin, if it has not begun: a process that hears of no work needs no thread."""
        if self._thread is not None:
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._keep_up, name="flowengine-upkeep", daemon=True
                )
                self._thread.start()

    def _keep_up(self) -> None:
        while not self._stop.wait(self._interval):
            for duty in self._duties:
                try:
                    duty()
                except Exception as problem:  # the database is away; there is a next time
                    log.debug("could not keep up: %s", problem)

    def end(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(1.0)

"""Log an outage of the database: one line when it begins in this process, one when it ends.

Everything that an outage fails is repeated by recovery, by the broker or from the spool. A line
for each message would bury the lines that need a person.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flowengine.fork import at_fork
from flowengine.store.failures import is_unavailable

log = logging.getLogger("flowengine")

_LONGEST_CAUSE = 300  # characters; a driver adds the statement and its values


class OutageLog:
    """Shared by all threads of a process; a forked child begins anew."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reset()
        at_fork(in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._began: float | None = None  #: None: there is no outage
        self._failures = 0

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Note whether the database fails or answers in this block; its errors pass through."""
        began = self._clock()
        try:
            yield
        except Exception as problem:
            self.note(problem)
            raise
        if self._began is not None:
            self._end(began)

    def note(self, problem: object) -> bool:
        """Count an error if it is of an outage, and log the first; return whether it is."""
        if not isinstance(problem, Exception) or not is_unavailable(problem):
            return False
        with self._lock:
            self._failures += 1
            if self._began is not None:
                return True
            self._began = self._clock()
        cause = f"{type(problem).__name__}: {problem}".partition("\n")[0][:_LONGEST_CAUSE]
        log.error(
            "an outage of the database begins: %s; finished work is spooled, the rest is repeated "
            "when the database answers, and until then failures are only counted",
            cause,
            extra={"action": "outage_began"},
        )
        return True

    def _end(self, began: float) -> None:
        with self._lock:
            # Work that began before the outage may end well without the database.
            if self._began is None or began <= self._began:
                return
            seconds, failures = self._clock() - self._began, self._failures
            self._began, self._failures = None, 0
        log.warning(
            "the outage of the database has ended after %.1f s, with %d failures in this process",
            seconds,
            failures,
            extra={"action": "outage_ended"},
        )


_logs: dict[str, OutageLog] = {}


def outage_log(database_url: str) -> OutageLog:
    """Return the log of this process for a database."""
    if database_url not in _logs:
        _logs.setdefault(database_url, OutageLog())
    return _logs[database_url]

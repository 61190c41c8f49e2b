"""The timeouts of calls in place.

A call in place has no task, so recovery does not see its silence. A thread of this process looks
after the calls that have a timeout. When one is over, it reports the call as failed, with the lease
of the activation: the code goes on, as in any thread, and whatever it returns is refused.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger("flowengine")

_AGAIN = 1.0  # seconds until a report is repeated that the database did not take


class WatchedCall:
    """A call in place that has a timeout."""

    def __init__(
        self, seconds: float, expire: Callable[[], object], run_id: str, path: str
    ) -> None:
        self.seconds, self.expire, self.run_id, self.path = seconds, expire, run_id, path
        self.has_expired = False
        self.beat()

    def beat(self) -> None:
        """Restart the timeout."""
        self.due = time.monotonic() + self.seconds


class CallTimeouts:
    """Shared by all threads of a process."""

    def __init__(self) -> None:
        self._calls: set[WatchedCall] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._wakes_at = math.inf  #: the time at which the thread looks by itself

    @contextmanager
    def over(
        self, seconds: float, expire: Callable[[], object], run_id: str, path: str
    ) -> Iterator[WatchedCall]:
        """Look after a call of a run; `expire` reports that it has failed, and may raise.

        Its `has_expired` is final when the context is left.
        """
        call = WatchedCall(seconds, expire, run_id, path)
        with self._changed:
            self._calls.add(call)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._watch, name="flowengine-call-timeouts", daemon=True
                )
                self._thread.start()
            if call.due < self._wakes_at:
                self._changed.notify_all()
        try:
            yield call
        finally:
            with self._changed:
                self._calls.discard(call)

    def _watch(self) -> None:
        # Under the lock: a call that returns now is either reported as failed, or not at all.
        with self._changed:
            while True:
                now = time.monotonic()
                for call in [call for call in self._calls if call.due <= now]:
                    self._end(call)
                self._wakes_at = min((call.due for call in self._calls), default=math.inf)
                left = self._wakes_at - time.monotonic()
                self._changed.wait(None if left == math.inf else max(left, 0.001))

    def _end(self, call: WatchedCall) -> None:
        try:
            call.expire()
        except Exception as problem:  # it must go on: nobody else looks after the other calls
            log.warning(
                "the timeout of %s of run %s, a call in place, cannot be reported yet: %s; it is "
                "reported again every %g s",
                call.path,
                call.run_id,
                problem,
                _AGAIN,
                extra={"action": "report_failed", "run": call.run_id},
            )
            call.due = time.monotonic() + _AGAIN
        else:
            call.has_expired = True
            self._calls.discard(call)

"""The timeouts of calls in place.

A call in place has no task, so recovery does not see its silence. A thread of this process looks
after the calls that have a timeout. When one is over, it ends the try that makes the call, with the
lease of that try: an activation reports the call as failed, a model call its answer alone. The code
goes on, as in any thread, and whatever it returns is refused.
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
        self.is_expiring = False  #: the thread reports it now
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
        """Look after a call of a run; `expire` ends its try, and may raise.

        Its `has_expired` is final when the context is left.
        """
        call = WatchedCall(seconds, expire, run_id, path)
        with self._changed:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._watch, name="flowengine-call-timeouts", daemon=True
                )
                self._thread.start()
            self._calls.add(call)
            if call.due < self._wakes_at:
                self._changed.notify_all()
        try:
            yield call
        finally:
            with self._changed:
                # A call that returns now is either reported, or not at all.
                while call.is_expiring:
                    self._changed.wait()
                self._calls.discard(call)

    def _watch(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                due = [call for call in self._calls if call.due <= now]
                for call in due:
                    call.is_expiring = True
                if not due:
                    self._wakes_at = min((call.due for call in self._calls), default=math.inf)
                    left = self._wakes_at - now
                    self._changed.wait(None if left == math.inf else max(left, 0.001))
            # Without the lock: the other calls of the process begin and end meanwhile.
            for call in due:
                self._end(call)
                with self._changed:
                    call.is_expiring = False
                    self._changed.notify_all()

    def _end(self, call: WatchedCall) -> None:
        try:
            call.expire()
        except Exception as problem:  # it must go on: nobody else looks after the other calls
            log.warning(
                "the timeout of a call in place of %s of run %s cannot be reported yet: %s; it is "
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
            with self._changed:
                self._calls.discard(call)

"""The progress that a try reports: written at once, and then no more than ten times a second."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

from flowengine.program.nodes import Json
from flowengine.store import codec

INTERVAL = 0.1  #: seconds between two writes of one try
MAX_BYTES = 8_000  #: of a progress as JSON


def written(progress: Json) -> str:
    """Return a progress as JSON; raises ValueRefused if it has none, or is too large."""
    codec.check_value("the progress of a heartbeat", progress, MAX_BYTES)
    return json.dumps(codec.plain(progress))


class ProgressReports:
    """Sends the progress of one try.

    A report within the interval of the one before is kept, and sent at the end of the interval or
    of the try: the last value is always written. Threads may share it.
    """

    def __init__(self, send: Callable[[str], bool]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._sending = threading.Lock()  # a later value must not be overwritten by an earlier one
        self._next = 0.0  #: the earliest time of the next write
        self._kept: str | None = None
        self._timer: threading.Timer | None = None
        self._holds = True  #: the lease, as the last write found it

    def report(self, text: str) -> bool:
        """Send a progress, now or soon; False if the lease was lost."""
        with self._lock:
            self._kept = text
            wait = self._next - time.monotonic()
            if wait > 0:
                if self._timer is None:
                    self._timer = threading.Timer(wait, self.flush)
                    self._timer.daemon = True
                    self._timer.start()
                return self._holds
        self.flush()
        return self._holds

    def flush(self) -> None:
        """Send the value that is kept; at the end of the try too."""
        with self._sending:
            with self._lock:
                if self._timer is not None:
                    self._timer.cancel()
                text, self._kept, self._timer = self._kept, None, None
                self._next = time.monotonic() + INTERVAL
            if text is not None and self._holds:
                self._holds = self._send(text)

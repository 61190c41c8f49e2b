"""The cancel token of a try: it is set when the result of the try is no longer wanted."""

from __future__ import annotations

import threading

from flowengine.errors import TryCancelled


class CancelToken:
    """Passed on by a facet to code that takes long, in any thread.

    Set when the lease of the try is lost: its run was cancelled, its step timed out, or was
    answered from outside. The process checks that every `heartbeat_interval`; `heartbeat()` does at
    once.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._event = threading.Event()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds until it is set; return whether it is. None: no limit."""
        return self._event.wait(timeout)

    def check(self) -> None:
        """Raise TryCancelled if it is set."""
        if self._event.is_set():
            raise TryCancelled(self._path)

    def set(self) -> None:
        self._event.set()

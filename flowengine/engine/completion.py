"""Wait for the end of a run: woken by a notification, with polling where there is none."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from flowengine.store import Store
from flowengine.store.protocol import CompletionListener

#: Seconds between two checks of a waiting caller, growing. Another process that shares a SQLite
#: file cannot notify this one.
_FIRST_POLL, _LAST_POLL = 0.02, 0.25
#: Seconds between two checks while PostgreSQL notifies: a connection may be dead without an error.
_LISTENING_POLL = 10.0


class RunCompletions:
    def __init__(self, database: Store) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._waiters: defaultdict[str, set[Callable[[], object]]] = defaultdict(set)
        self._listener: CompletionListener | None = None

    def announce(self, run_id: str) -> None:
        with self._lock:
            waiters = list(self._waiters.get(run_id, ()))
        for wake in waiters:
            wake()

    def _wake_all(self) -> None:
        with self._lock:
            waiters = [wake for of_run in self._waiters.values() for wake in of_run]
        for wake in waiters:
            wake()

    @contextmanager
    def _registered(self, run_id: str, wake: Callable[[], object]) -> Iterator[None]:
        with self._lock:
            self._waiters[run_id].add(wake)
            if self._listener is None:
                self._listener = self._database.listen(self.announce, self._wake_all)
        try:
            yield
        finally:
            with self._lock:
                self._waiters[run_id].discard(wake)
                if not self._waiters[run_id]:
                    del self._waiters[run_id]

    def _intervals(self, timeout: float | None) -> Iterator[float]:
        """Return how long to wait before each next check, until the time is over."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        interval = _FIRST_POLL
        while (left := deadline - time.monotonic()) > 0:
            is_notified = self._listener is not None and self._listener.is_listening
            yield min(left, _LISTENING_POLL if is_notified else interval)
            interval = min(interval * 1.5, _LAST_POLL)

    def wait(self, run_id: str, is_over: Callable[[], bool], timeout: float | None) -> None:
        """Call `is_over` until it returns True, or for the last time when the time is over."""
        woken = threading.Event()
        with self._registered(run_id, woken.set):
            for interval in self._intervals(timeout):
                woken.clear()  # before the check: an end after it sets the event again
                if is_over():
                    return
                woken.wait(interval)
            is_over()

    async def await_end(
        self, run_id: str, is_over: Callable[[], bool], timeout: float | None
    ) -> None:
        """Like `wait`, without blocking the event loop."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop was closed in the meantime
                loop.call_soon_threadsafe(woken.set)

        with self._registered(run_id, wake):
            for interval in self._intervals(timeout):
                woken.clear()
                if await asyncio.to_thread(is_over):
                    return
                with suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), interval)
            await asyncio.to_thread(is_over)

    def close(self) -> None:
        if self._listener is not None:
            self._listener.stop()

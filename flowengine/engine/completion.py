"""Wait for the end of a run: woken by a notification, with polling where there is none."""

from __future__ import annotations

import asyncio
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
    """Wakes the callers in this process that wait for runs to end."""

    def __init__(self, database: Store) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._waiters: defaultdict[str, set[Callable[[], object]]] = defaultdict(set)
        self._listener: CompletionListener | None = None

    def announce(self, run_id: str) -> None:
        """Wake the callers that wait for this run."""
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

    def _intervals(self) -> Iterator[float]:
        interval = _FIRST_POLL
        while True:
            is_notified = self._listener is not None and self._listener.is_listening
            yield _LISTENING_POLL if is_notified else interval
            interval = min(interval * 1.5, _LAST_POLL)

    def wait(self, run_id: str, is_over: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until the run is over; False when the time ran out first."""
        deadline = None if timeout is None else time.monotonic() + timeout
        woken = threading.Event()
        with self._registered(run_id, woken.set):
            for interval in self._intervals():
                woken.clear()  # before the check: an end after it sets the event again
                if is_over():
                    return True
                if deadline is not None:
                    interval = min(interval, deadline - time.monotonic())
                    if interval <= 0:
                        return False
                woken.wait(interval)
        raise AssertionError("intervals are endless")

    async def await_end(
        self, run_id: str, is_over: Callable[[], bool], timeout: float | None
    ) -> bool:
        """Like `wait`, without blocking the event loop."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        woken = asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop was closed in the meantime
                loop.call_soon_threadsafe(woken.set)

        with self._registered(run_id, wake):
            for interval in self._intervals():
                woken.clear()
                if await asyncio.to_thread(is_over):
                    return True
                if deadline is not None:
                    interval = min(interval, deadline - loop.time())
                    if interval <= 0:
                        return False
                with suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), interval)
        raise AssertionError("intervals are endless")

    def close(self) -> None:
        if self._listener is not None:
            self._listener.stop()

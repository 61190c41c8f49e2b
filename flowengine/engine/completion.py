"""Wait for a run to end by being told, not by asking again and again."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from flowengine.store import Database
from flowengine.store.listener import Listener

#: Seconds between two looks of a waiter, growing: whoever ends a run in another process that
#: shares a SQLite file has no way to tell.
_FIRST_LOOK, _LAST_LOOK = 0.02, 0.25


class RunCompletions:
    """Tells waiters in this process which runs have ended."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._waiters: defaultdict[str, set[Callable[[], object]]] = defaultdict(set)
        self._listener: Listener | None = None

    def announce(self, run_id: str) -> None:
        with self._lock:
            waiters = list(self._waiters.get(run_id, ()))
        for wake in waiters:
            wake()

    @contextmanager
    def _told(self, run_id: str, wake: Callable[[], object]) -> Iterator[None]:
        with self._lock:
            self._waiters[run_id].add(wake)
            if self._listener is None and not self._database.is_sqlite:
                self._listener = Listener(self._database, self.announce)
        try:
            yield
        finally:
            with self._lock:
                self._waiters[run_id].discard(wake)
                if not self._waiters[run_id]:
                    del self._waiters[run_id]

    def wait(self, run_id: str, is_over: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until the run is over; False when the time ran out first."""
        ends = None if timeout is None else time.monotonic() + timeout
        told = threading.Event()
        with self._told(run_id, told.set):
            for pause in _pauses():
                if is_over():
                    return True
                if ends is not None and (pause := min(pause, ends - time.monotonic())) <= 0:
                    return False
                told.wait(pause)
        raise AssertionError("pauses never end")

    async def await_end(
        self, run_id: str, is_over: Callable[[], bool], timeout: float | None
    ) -> bool:
        """Like `wait`, without blocking the event loop."""
        loop = asyncio.get_running_loop()
        ends = None if timeout is None else loop.time() + timeout
        told = asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop was closed while we were about to tell
                loop.call_soon_threadsafe(told.set)

        with self._told(run_id, wake):
            for pause in _pauses():
                if await asyncio.to_thread(is_over):
                    return True
                if ends is not None and (pause := min(pause, ends - loop.time())) <= 0:
                    return False
                try:
                    await asyncio.wait_for(told.wait(), pause)
                except TimeoutError:
                    continue
        raise AssertionError("pauses never end")

    def close(self) -> None:
        if self._listener is not None:
            self._listener.stop()


def _pauses() -> Iterator[float]:
    pause = _FIRST_LOOK
    while True:
        yield pause
        pause = min(pause * 1.5, _LAST_LOOK)

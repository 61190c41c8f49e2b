"""Debounce: several wake-ups of one task list within some milliseconds become one.

A burst of starts would send a message each, and every message costs a worker more than the claim
it leads to. So the first wake-up of a list is sent at once, and those that follow within `pause`
seconds together, at the end of that time, or as soon as a caller waits for a run. The rest is
sent when the process ends.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

from flowengine.fork import at_fork


class Debounce:
    """Passes calls on, at most once in `pause` seconds for each task list."""

    def __init__(self, notify: Callable[[Mapping[str, int]], None], pause: float) -> None:
        self._notify, self._pause = notify, pause
        self._changed, self._sending = threading.Condition(), threading.Lock()
        self._last: dict[str, float] = {}
        self._delayed: Counter[str] = Counter()
        self._thread: threading.Thread | None = None
        at_fork(in_child=self.forked)

    def forked(self) -> None:
        """Begin anew in a forked child: the parent sends what is delayed, and has the thread."""
        self._changed, self._sending = threading.Condition(), threading.Lock()
        self._delayed, self._thread = Counter(), None

    def __call__(self, due: Mapping[str, int]) -> None:
        now = time.monotonic()
        at_once = {}
        with self._changed:
            for task_list, count in due.items():
                if now - self._last.get(task_list, 0.0) < self._pause:
                    self._delay(task_list, count)
                else:
                    self._last[task_list] = now
                    at_once[task_list] = count
        if at_once:
            self._notify(at_once)

    def _delay(self, task_list: str, count: int) -> None:
        self._delayed[task_list] += count
        if self._thread is None:
            self._thread = threading.Thread(target=self._send_delayed, daemon=True)
            self._thread.name = "flowengine-debounce"
            self._thread.start()
            atexit.register(self.flush)
        self._changed.notify()

    def _send_delayed(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._delayed)
            time.sleep(self._pause)
            self.flush()

    def flush(self) -> None:
        """Send delayed wake-ups; when this returns they are sent, by this thread or another."""
        with self._sending:
            with self._changed:
                delayed, self._delayed = self._delayed, Counter()
                self._last.update(dict.fromkeys(delayed, time.monotonic()))
            if delayed:
                self._notify(delayed)

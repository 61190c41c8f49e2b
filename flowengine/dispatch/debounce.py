"""Ring once for many.

A burst of starts would ring a bell each, and every bell costs a worker more than the claim
it leads to. So the first bell of a list is rung at once, and those that follow within a few
milliseconds together, at the end of that time, or as soon as somebody waits for a run.
Nothing is left unrung: what is still due when the process ends is rung then.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

from flowengine.fork import at_fork


class Debounce:
    """Passes calls on, no more often than once in a while for each task list."""

    def __init__(self, notify: Callable[[Mapping[str, int]], None], pause: float) -> None:
        self._ring, self._pause = notify, pause
        self._changed, self._ringing = threading.Condition(), threading.Lock()
        self._last: dict[str, float] = {}
        self._kept: Counter[str] = Counter()
        self._thread: threading.Thread | None = None
        at_fork(in_child=self.forked)

    def forked(self) -> None:
        """In a forked child: what is kept the parent rings for, and its thread is not here."""
        self._changed, self._ringing = threading.Condition(), threading.Lock()
        self._kept, self._thread = Counter(), None

    def __call__(self, due: Mapping[str, int]) -> None:
        now = time.monotonic()
        at_once = {}
        with self._changed:
            for task_list, count in due.items():
                if now - self._last.get(task_list, 0.0) < self._pause:
                    self._keep(task_list, count)
                else:
                    self._last[task_list] = now
                    at_once[task_list] = count
        if at_once:
            self._ring(at_once)

    def _keep(self, task_list: str, count: int) -> None:
        self._kept[task_list] += count
        if self._thread is None:
            self._thread = threading.Thread(target=self._pass_on, daemon=True)
            self._thread.name = "flowengine-bells"
            self._thread.start()
            atexit.register(self.flush)
        self._changed.notify()

    def _pass_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._kept)
            time.sleep(self._pause)
            self.flush()

    def flush(self) -> None:
        """Ring for what was kept; when this returns it is rung, whoever did it."""
        with self._ringing:
            with self._changed:
                kept, self._kept = self._kept, Counter()
                self._last.update(dict.fromkeys(kept, time.monotonic()))
            if kept:
                self._ring(kept)

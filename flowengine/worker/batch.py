"""What one thread has in hand: tasks it has claimed, and reports it has not made yet.

The thread works through it alone. But when that takes long, for a task that turns out to be slow
or for many that do, another takes away what lies around the task that runs: the finished ones to
report them, the others to hand them back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import Report

log = logging.getLogger("flowengine")


class Batch:
    """Tasks and reports of one thread."""

    def __init__(self, tasks: Iterable[TaskDefinition]) -> None:
        self._lock = threading.Lock()
        self._waiting = deque(tasks)
        self._done: list[Report] = []
        self._since = time.monotonic()  #: nothing lies here for longer than since then

    def add(self, tasks: Iterable[TaskDefinition]) -> None:
        with self._lock:
            if not self._waiting and not self._done:
                self._since = time.monotonic()
            self._waiting.extend(tasks)

    def next(self) -> TaskDefinition | None:
        """Begin with the next task."""
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def finish(self, report: Report) -> None:
        with self._lock:
            if not self._waiting and not self._done:
                self._since = time.monotonic()
            self._done.append(report)

    def take_done(self) -> list[Report]:
        with self._lock:
            done, self._done = self._done, []
            return done

    def take_waiting(self) -> list[TaskDefinition]:
        with self._lock:
            waiting = list(self._waiting)
            self._waiting.clear()
            return waiting

    def take_like(self, task: TaskDefinition) -> list[TaskDefinition]:
        """Take the task that was begun with out of the hand, and those of the same circuit."""
        with self._lock:
            alike = [task, *(other for other in self._waiting if other.circuit == task.circuit)]
            self._waiting = deque(t for t in self._waiting if t.circuit != task.circuit)
            return alike

    def is_stuck(self, max_wait: float) -> bool:
        """Whether something may have been lying here for so long."""
        with self._lock:
            is_full = bool(self._waiting or self._done)
            return is_full and time.monotonic() - self._since > max_wait


class BatchGuard:
    """A thread that looks after the hands of a process while any of them is full.

    It needs the interpreter for that: behind code that holds Python's lock for long, what is
    in the same hand waits that long too.
    """

    def __init__(self, max_wait: float, relieve: Callable[[Batch], object]) -> None:
        self._patience, self._empty_batch = max_wait, relieve
        self._hands: set[Batch] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_ended = False

    @contextmanager
    def over(self, hand: Batch) -> Iterator[None]:
        """Look after a hand for as long as it is worked through."""
        with self._changed:
            self._hands.add(hand)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._look, name="flowengine-guard", daemon=True
                )
                self._thread.start()
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._hands.discard(hand)

    def _look(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._hands or self._is_ended)
                if self._is_ended:
                    return
                hands = list(self._hands)
            for hand in hands:
                try:
                    if hand.is_stuck(self._patience):
                        self._empty_batch(hand)
                except Exception:  # nobody else looks after the other hands
                    log.exception("the guard stumbled", extra={"action": "guard_stumbled"})
            time.sleep(self._patience / 2)

    def end(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(1.0)

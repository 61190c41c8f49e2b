"""The claimed tasks that one thread works through: their order, not their state.

A slow task would delay the others of its batch. So a guard takes away everything but the running
task after `batch_max_wait`: finished tasks to report them, unstarted ones to release them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from flowengine.evaluator.triggers import Outcome
from flowengine.worker.claimed_tasks import ClaimedTask, ClaimedTasks, ClaimState

log = logging.getLogger("flowengine")


class Batch:
    """The order in which one thread starts and reports tasks."""

    def __init__(self, claimed: ClaimedTasks, entries: Iterable[ClaimedTask]) -> None:
        self._claimed = claimed
        self._lock = threading.Lock()
        self._unstarted = deque(entries)
        self._finished: list[ClaimedTask] = []

    def add(self, entries: Iterable[ClaimedTask]) -> None:
        with self._lock:
            self._unstarted.extend(entries)

    def next(self) -> ClaimedTask | None:
        with self._lock:
            while self._unstarted:
                entry = self._unstarted.popleft()
                if entry.state == ClaimState.CLAIMED:  # a process that ends releases them
                    return entry
            return None

    def finish(self, entry: ClaimedTask, outcome: Outcome) -> None:
        with self._lock:
            if self._claimed.finish(entry, outcome):
                self._finished.append(entry)

    def take_finished(self) -> list[ClaimedTask]:
        with self._lock:
            finished, self._finished = self._finished, []
            return finished

    def take_unstarted(self) -> list[ClaimedTask]:
        with self._lock:
            unstarted, self._unstarted = self._unstarted, deque()
            return [entry for entry in unstarted if entry.state == ClaimState.CLAIMED]

    def take_circuit(self, circuit: str) -> list[ClaimedTask]:
        """Take the unstarted tasks of a circuit: it would refuse them all."""
        with self._lock:
            refused = [entry for entry in self._unstarted if entry.task.circuit == circuit]
            self._unstarted = deque(e for e in self._unstarted if e.task.circuit != circuit)
            return refused

    def is_stuck(self, max_wait: float) -> bool:
        """Whether a task has waited here for longer, to be started or to be reported."""
        with self._lock:
            first = (*self._finished[:1], *([self._unstarted[0]] if self._unstarted else ()))
            now = self._claimed.clock()
            return any(now - entry.since > max_wait for entry in first)


class BatchGuard:
    """A thread that looks after the batches of a process while there are any.

    It needs the interpreter for that: code that holds the GIL delays it, and the batch.
    """

    def __init__(self, max_wait: float, empty: Callable[[Batch], object]) -> None:
        self._max_wait, self._empty = max_wait, empty
        self._batches: set[Batch] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_ended = False

    @contextmanager
    def over(self, batch: Batch) -> Iterator[None]:
        """Look after a batch for as long as its thread works."""
        with self._changed:
            self._batches.add(batch)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._watch, name="flowengine-batch-guard", daemon=True
                )
                self._thread.start()
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._batches.discard(batch)

    def _watch(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._batches or self._is_ended)
                if self._is_ended:
                    return
                batches = list(self._batches)
            for batch in batches:
                try:
                    if batch.is_stuck(self._max_wait):
                        self._empty(batch)
                except Exception:  # it must go on: nobody else looks after the other batches
                    log.exception("batch guard failed", extra={"action": "batch_guard_failed"})
            time.sleep(self._max_wait / 2)

    def end(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(1.0)

"""Answer a bell: claim what is due, run it, report it, until nothing is left."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from flowengine.engine import Engine
from flowengine.evaluator import TaskDefinition
from flowengine.store.tasks import Claimant
from flowengine.worker.trying import run_try

log = logging.getLogger("flowengine")


class Drainer:
    """Works on tasks for one server. Shared by all threads of its pool."""

    def __init__(
        self, engine: Engine, claimant: Claimant, names: Callable[[], Sequence[str]]
    ) -> None:
        self._engine, self._claimant, self._names = engine, claimant, names
        self._lock = threading.Lock()
        self._held: dict[str, TaskDefinition] = {}
        self._idle = threading.Condition(self._lock)
        self._stopping = False

    def drain(self, task_list: str) -> int:
        """Work until the list has nothing for us or the slice is over; return what was done.

        A slice that ends rings again: other lists must have their turn in this pool.
        """
        ends = time.monotonic() + self._engine.settings.drain_slice
        done = 0
        while not self._stopping:
            claimed = self._engine.claim(self._names(), task_list, self._claimant, most=1)
            if not claimed:
                return done
            for task in claimed:
                self._work_on(task)
                done += 1
            if time.monotonic() > ends:
                self._engine.bell.ring({task_list: 1})
                return done
        return done

    def _work_on(self, task: TaskDefinition) -> None:
        with self._lock:
            self._held[task.uuid] = task
        try:
            outcome = run_try(task, lambda: self._engine.heartbeat(task))
            self._engine.report(task, outcome)
        finally:
            with self._idle:
                self._held.pop(task.uuid, None)
                self._idle.notify_all()

    def claim_no_more(self) -> None:
        self._stopping = True

    def stop(self, patience: float) -> None:
        """Claim nothing more, wait a moment for what runs, and hand the rest back."""
        self.claim_no_more()
        with self._idle:
            self._idle.wait_for(lambda: not self._held, timeout=patience)
            left = list(self._held.values())
        for task in left:
            self._engine.release(task)

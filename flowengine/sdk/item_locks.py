"""The locks of a runner service on the steps it works on, extended while their handlers run.

The lease of a task decides whose result is recorded. A lease is lost without the knowledge of its
holder, whose handler goes on: by a timeout, or because the server was taken for dead. The lock is
held until the handler has returned: so two runners never run handlers of one step side by side,
unless the first one did not extend its lock in time. The locks of a batch are one statement.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from flowengine.engine.locks import Locks
from flowengine.store.failures import is_unavailable
from flowengine.store.work_locks import LockMetaData
from flowengine.worker.claimed_tasks import ClaimedTask, ClaimState

log = logging.getLogger("flowengine")

_MAX_PAUSE = 1.0  # seconds until a task whose step is locked is due again
_JOIN_SECONDS = 2.0
_ENDED = ClaimState.FINAL | {ClaimState.SPOOLED}


def key_of(step_id: str) -> str:
    """Return the key of the lock on a step."""
    return f"step:{step_id}"


class ItemLocks:
    """Shared by all threads of a runner; the gate of its worker."""

    def __init__(self, locks: Locks, duration_ms: int, extend_interval_ms: int) -> None:
        self._locks, self._duration = locks, duration_ms
        self._interval = extend_interval_ms / 1000
        self.seconds = min(_MAX_PAUSE, self._interval)
        self._lock = threading.Lock()
        self._held: dict[str, ClaimedTask] = {}
        self._stop = threading.Event()

    # --- the gate ---

    def enter(self, entries: Sequence[ClaimedTask]) -> Sequence[ClaimedTask]:
        """Acquire the locks of these tasks; return the tasks whose lock nobody else holds."""
        wanted = {key_of(entry.task.step_id): entry for entry in entries}
        if any(key in self._held for key in wanted):
            self.leave_ended()
        got = self._locks.acquire_locks(
            {key: _meta(entry) for key, entry in wanted.items()}, self._duration
        )
        with self._lock:
            self._held |= {key: wanted[key] for key in got}
        return [wanted[key] for key in wanted if key in got]

    def leave(self, entries: Sequence[ClaimedTask]) -> None:
        """Release the locks of tasks whose handler has returned, or was not called."""
        keys = [key_of(entry.task.step_id) for entry in entries]
        with self._lock:
            own = [key for key, e in zip(keys, entries, strict=True) if self._held.get(key) is e]
            for key in own:
                del self._held[key]
        self._release(own)

    def leave_ended(self) -> None:
        """Release the locks of tasks that have ended otherwise: a coroutine was cancelled."""
        with self._lock:
            ended = [entry for entry in self._held.values() if entry.state in _ENDED]
        self.leave(ended)

    def _release(self, keys: Sequence[str]) -> None:
        if not keys:
            return
        try:
            self._locks.release_locks(keys)
        except Exception as problem:  # they expire
            self._log_failure("released", problem)

    # --- the background ---

    @contextmanager
    def extended(self) -> Iterator[None]:
        """Extend the locks of running tasks, in a thread; release all of them at the end."""
        thread = threading.Thread(target=self._repeat, name="flowengine-item-locks", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join(_JOIN_SECONDS)
            with self._lock:
                keys, self._held = list(self._held), {}
            self._release(keys)

    def _repeat(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                self.extend()
            except Exception as problem:
                self._log_failure("extended", problem)

    def extend(self) -> None:
        """Extend the locks of running tasks once; a lock that expired is acquired again."""
        self.leave_ended()
        with self._lock:
            running = dict(self._held)
        if not running:
            return
        lost = running.keys() - self._locks.extend_locks(list(running), self._duration)
        if not lost:
            return
        again = {key: _meta(running[key]) for key in sorted(lost)}
        gone = lost - self._locks.acquire_locks(again, self._duration)
        with self._lock:
            for key in gone:
                self._held.pop(key, None)
        for key in sorted(gone):
            task = running[key].task
            log.warning(
                "the lock on %s expired, and another runner has it: its handler may run twice at "
                "once; its lease decides whose result counts",
                task.step_path,
                extra={"action": "item_lock_lost", "run": task.workflow_id, "facet": task.name},
            )

    def _log_failure(self, verb: str, problem: Exception) -> None:
        level = logging.DEBUG if is_unavailable(problem) else logging.WARNING
        about = {"action": "item_locks_failed"}
        log.log(level, "locks on work items were not %s: %s", verb, problem, extra=about)


def _meta(entry: ClaimedTask) -> LockMetaData:
    task = entry.task
    return LockMetaData(task.task_list_name, task.name, task.step_path, task.step_id)

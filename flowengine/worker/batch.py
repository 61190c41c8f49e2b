"""Batches: the claimed tasks that one thread works through; their order and number.

A slow task would delay the others of its batch. So a guard takes away everything but the running
task after `batch_max_wait`: finished tasks to report them, unstarted ones to release them.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from flowengine.dispatch import NO_PROMISE, ClaimPromise
from flowengine.evaluator.triggers import Outcome
from flowengine.worker.claimed_tasks import ClaimedTask, ClaimedTasks, ClaimState

log = logging.getLogger("flowengine")

_ENOUGH = 2  # tries before a facet can be quick
_WEIGHT = 0.2  # of the latest try in the moving average
_SLOW = 10.0  # multiple of `quick_seconds` above which a try is slow
_MEMORY = 10.0  # seconds for which a slow try is remembered
_SHOWN = 3  # tasks that a log line names
# Of the overhead that counts for the size of a batch. Callers ask for half of the time after which
# the guard releases unstarted tasks; tasks with overhead may take all of it: each claim of a batch
# costs as much as some of them.
_OF_OVERHEAD = 0.5
_GROWTH = 3  # tasks of a batch for each consecutive quick try


class Interleaved(Protocol):
    """Activations of a batch that its thread has started, and runs in rounds."""

    def is_stuck(self, max_wait: float) -> bool:
        """Whether others wait behind one that has run for longer."""

    def stop_waiting(self, max_wait: float) -> None:
        """Stop and release them if that is so."""


class Batch:
    """The order in which one thread starts and reports tasks."""

    def __init__(
        self,
        claimed: ClaimedTasks,
        entries: Iterable[ClaimedTask],
        promise: ClaimPromise = NO_PROMISE,
    ) -> None:
        self._claimed, self.promise = claimed, promise
        self._started = claimed.clock()
        self._lock = threading.Lock()
        self._unstarted = deque(entries)
        self._finished: list[ClaimedTask] = []
        self._interleaved: Interleaved | None = None

    def add(self, entries: Iterable[ClaimedTask]) -> None:
        with self._lock:
            self._unstarted.extend(entries)

    def next(self) -> ClaimedTask | None:
        with self._lock:
            while self._unstarted:
                entry = self._unstarted.popleft()
                if entry.state == ClaimState.CLAIMED:  # a process that ends releases them
                    self._started = self._claimed.clock()
                    return entry
            return None

    def finish(self, entry: ClaimedTask, outcome: Outcome) -> None:
        with self._lock:
            if self._claimed.finish(entry, outcome):
                self._finished.append(entry)

    @property
    def has_finished(self) -> bool:
        """Whether tasks wait here to be reported."""
        return bool(self._finished)

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
        return self.take(lambda entry: entry.task.circuit == circuit)

    def take(self, is_wanted: Callable[[ClaimedTask], bool]) -> list[ClaimedTask]:
        """Take unstarted tasks out of the batch, to start them or to give them back."""
        with self._lock:
            taken, others = list[ClaimedTask](), deque[ClaimedTask]()
            for entry in self._unstarted:
                (taken if is_wanted(entry) else others).append(entry)
            self._unstarted = others
            return taken

    @contextmanager
    def interleaving(self, activations: Interleaved) -> Iterator[None]:
        """Let the guard look after these activations, too."""
        self._interleaved = activations
        try:
            yield
        finally:
            self._interleaved = None

    def stop_interleaved(self, max_wait: float) -> None:
        """Stop the activations that wait behind one that has run for longer."""
        interleaved = self._interleaved
        if interleaved is not None:
            interleaved.stop_waiting(max_wait)

    def waiting(self) -> list[ClaimedTask]:
        """Return the tasks that wait here to be reported or to be started."""
        with self._lock:
            return [*self._finished, *self._unstarted]

    def is_slow(self, max_wait: float) -> bool:
        """Whether the task that was started last, or the report behind it, takes longer."""
        return self._claimed.clock() - self._started > max_wait

    def is_stuck(self, max_wait: float) -> bool:
        """Whether a task has waited here for longer, to be started or to be reported."""
        interleaved = self._interleaved
        if interleaved is not None and interleaved.is_stuck(max_wait):
            return True
        with self._lock:
            first = (*self._finished[:1], *([self._unstarted[0]] if self._unstarted else ()))
            now = self._claimed.clock()
            return any(now - entry.since > max_wait for entry in first)


def _shown(entry: ClaimedTask) -> str:
    return f"{entry.task.step_path} of run {entry.task.workflow_id}"


class BatchGuard:
    """A thread that looks after the batches of a process while there are any.

    It needs the interpreter for that: code that holds the GIL delays it, and the batch.
    """

    def __init__(self, max_wait: float, empty: Callable[[Batch], object]) -> None:
        self._max_wait, self._empty = max_wait, empty
        self._batches: set[Batch] = set()
        self._changed = threading.Condition()
        self._thread = threading.Thread(
            target=self._watch, name="flowengine-batch-guard", daemon=True
        )
        self._ended = threading.Event()

    @contextmanager
    def over(self, batch: Batch) -> Iterator[None]:
        """Look after a batch for as long as its thread works."""
        with self._changed:
            self._batches.add(batch)
            if self._thread.ident is None:
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
                self._changed.wait_for(lambda: self._batches or self._ended.is_set())
                if self._ended.is_set():
                    return
                batches = list(self._batches)
            for batch in batches:
                waiting: list[ClaimedTask] = []
                try:
                    if batch.is_slow(self._max_wait):
                        batch.promise.withdraw()
                    if batch.is_stuck(self._max_wait):
                        waiting = batch.waiting()
                        self._empty(batch)
                except Exception:  # it must go on: nobody else looks after the other batches
                    log.exception(
                        "batch guard failed to release or report %d tasks behind a slow one, among "
                        "them %s; it tries again in %g s",
                        len(waiting),
                        ", ".join(_shown(entry) for entry in waiting[:_SHOWN]) or "none",
                        self._max_wait / 2,
                        extra={"action": "batch_guard_failed"},
                    )
            # Not by `_changed`, which each batch notifies: that would wake this thread for each.
            self._ended.wait(self._max_wait / 2)

    def end(self) -> None:
        with self._changed:
            self._ended.set()
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(1.0)


@dataclass(slots=True)
class _Facet:
    average: float  #: seconds, without slow tries
    overhead: float = 0.0  #: average seconds that the engine took inside its tries
    tries: int = 0
    in_a_row: int = 0  #: tries since the last slow one
    last_slow: float = -math.inf


class BatchSizing:
    """How many tasks of a facet to claim together, from their measured duration.

    A facet is quick after some quick tries. Tasks that are claimed together with a slow one wait
    behind it until the guard releases them. So after a slow try the batch size of its facet begins
    at one again, and grows with each quick try. It takes no lock: it is an estimate.
    """

    def __init__(self, quick_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._quick, self._clock = quick_seconds, clock
        self._facets: dict[str, _Facet] = {}

    def count(self, name: str, seconds: float, overhead: float = 0.0) -> None:
        """Count a try; `overhead` does not make its facet a slow one, but its batches smaller."""
        is_slow = max(seconds, overhead) > self._quick * _SLOW
        facet = self._facets.get(name)
        if facet is None:
            facet = self._facets[name] = _Facet(0.0 if is_slow else seconds)
        facet.tries += 1
        if is_slow:
            facet.in_a_row, facet.last_slow = 0, self._clock()
        else:
            before = facet.average or seconds  # 0 if all tries so far were slow
            facet.average = before + (seconds - before) * _WEIGHT
            facet.overhead += (overhead - facet.overhead) * _WEIGHT
            facet.in_a_row += 1

    def is_quick(self, name: str) -> bool:
        facet = self._facets.get(name)
        if facet is None or facet.tries < _ENOUGH:
            return False
        return facet.in_a_row > 0 and facet.average <= self._quick

    def average(self, name: str) -> float:
        """Return the seconds of a try, without slow ones; 0.0 of a facet that was never tried."""
        facet = self._facets.get(name)
        return 0.0 if facet is None else facet.average

    def is_slow(self, name: str) -> bool:
        """Whether a facet is known not to be quick."""
        facet = self._facets.get(name)
        return facet is not None and facet.tries >= _ENOUGH and not self.is_quick(name)

    def quick(self, names: Iterable[str], last: str = "") -> list[str]:
        """Return the facets whose tasks may be claimed together, `last` being claimed last.

        A facet with a recent slow try, or with overhead, is among them only if it is `last`: it
        makes batches small, and the batches of other facets need not be.
        """
        quick = [name for name in names if self.is_quick(name)]
        return [name for name in quick if name == last or not self._makes_small(name)]

    def fitting(self, names: Iterable[str], seconds: float) -> int:
        """How many tasks of these facets to claim together, for at most `seconds` of work."""
        names = list(names)
        facets = [self._facets[name] for name in names]
        slowest = max((f.average + f.overhead * _OF_OVERHEAD for f in facets), default=0.0)
        if not slowest:
            return 1
        rows = [self._facets[name].in_a_row for name in names if self._was_slow(name)]
        fitting = int(seconds / slowest)
        return max(1, min(fitting, _GROWTH * min(rows)) if rows else fitting)

    def _makes_small(self, name: str) -> bool:
        return self._was_slow(name) or self._facets[name].overhead > self._quick

    def _was_slow(self, name: str) -> bool:
        return self._facets[name].last_slow > self._clock() - _MEMORY

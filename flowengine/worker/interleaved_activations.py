"""Interleaved activations: one thread runs several in rounds, and one commit records their calls.

Most of the time of a small durable function is spent on the commits that record its calls. So the
quick activations of a batch are interleaved. Each runs until it has made calls with effects, which
must be recorded before their ends are told. When all have done so, one commit records the calls of
all, and the next round begins.

One of them may hold the thread for longer than expected. Then the guard of the batch stops the
others: their calls are recorded, their coroutines dropped, and any worker replays them from there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flowengine.engine import Engine
from flowengine.evaluator.triggers import Outcome
from flowengine.store.failures import is_deadlock, is_unavailable
from flowengine.worker.activations import Rounds
from flowengine.worker.claimed_tasks import ClaimedTask, ClaimedTasks, ClaimState
from flowengine.worker.in_place_calls import InPlaceCalls

log = logging.getLogger("flowengine")

_MOST_CALLS = 100  #: that wait for the end of their round; with more it is recorded early


@dataclass(slots=True)
class _Activation:
    entry: ClaimedTask
    rounds: Rounds[Outcome | None]
    began: float = 0.0
    calls: InPlaceCalls | None = None  #: since its first round
    paused: float = 0.0  #: since then it waits for its next round
    has_run: bool = False  #: in this round

    @property
    def unrecorded(self) -> int:
        return 0 if self.calls is None else self.calls.to_record


class InterleavedActivations:
    """Runs activations of different runs, all in the thread that calls `run`.

    Invariant: an activation is run by that thread, or is one of `_waiting`, which the guard of the
    batch may empty. Those that have run in this round are behind those that have not.
    """

    def __init__(
        self,
        engine: Engine,
        claimed: ClaimedTasks,
        activations: Iterable[tuple[ClaimedTask, Rounds[Outcome | None]]],
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A round that takes longer than `seconds` is recorded before all have run."""
        self._engine, self._claimed = engine, claimed
        self._seconds, self._clock = seconds, clock
        self._waiting = deque(_Activation(*one) for one in activations)
        self._lock = threading.Lock()
        self.current: ClaimedTask | None = None  #: the one that runs
        self._since = clock()  #: when it began to
        self._record_at = self._since + seconds
        self._unrecorded = 0  #: calls of those that wait

    def run(self, finish: Callable[[ClaimedTask, Outcome, float], object]) -> int:
        """Run all; return how many have ended here, each passed to `finish` with its beginning."""
        finished = 0
        one = self._next()
        while one is not None:
            try:
                one.calls = next(one.rounds)
            except StopIteration as ended:
                if ended.value is not None:
                    finish(one.entry, ended.value, one.began)
                    finished += 1
                one = self._next()
            else:
                one = self._next(one)
        return finished

    def _next(self, before: _Activation | None = None) -> _Activation | None:
        """Return the activation that runs next; `before` has run, and goes on later."""
        with self._lock:
            self.current = None
            if not self._waiting:
                # Alone it records its calls itself, and the guard has nothing to stop.
                self.current = None if before is None else before.entry
                return before
            now = self._clock()
            if before is not None:
                self._pause(before, now)
            # If the first one has run in this round, all have. One whose calls were recorded early
            # runs again behind those that have not run yet.
            is_round_over = self._waiting[0].has_run
            if is_round_over or self._unrecorded >= _MOST_CALLS or now > self._record_at:
                self._record()
                now = self._clock()
                self._record_at = now + self._seconds
            one = self._waiting.popleft()
            if one.calls is None:
                one.began = now
            else:
                one.calls.resume(now - one.paused)
                self._claimed.resume(one.entry)
            self._since, self.current = now, one.entry
            return one

    def _pause(self, one: _Activation, now: float) -> None:
        assert one.calls is not None
        self._claimed.pause(one.entry)
        one.paused, one.has_run = now, True
        self._unrecorded += one.unrecorded
        self._waiting.append(one)

    def _record(self) -> None:
        """Record the calls of those that wait by one commit; if it is refused, each its own."""
        unrecorded = _unrecorded(self._waiting)
        if len(unrecorded) > 1:
            try:
                InPlaceCalls.record_together(self._engine, unrecorded)
            except Exception as problem:
                log.debug("the calls of activations are not recorded together: %s", problem)
                if is_unavailable(problem) or is_deadlock(problem):
                    # Nothing is known of this commit, and the next one would wait as long.
                    for calls in unrecorded:
                        calls.refuse(problem)
        for one in self._waiting:
            one.has_run = False
        self._unrecorded = 0

    # --- for the guard of the batch, and for a thread that is interrupted ---

    def is_stuck(self, max_wait: float) -> bool:
        """Whether others wait behind one that has run for longer."""
        is_running = self.current is not None  # else the calls of a round are recorded
        return is_running and bool(self._waiting) and self._clock() - self._since > max_wait

    def stop_waiting(self, max_wait: float | None = None) -> list[ClaimedTask]:
        """Stop the activations that wait, and return them: they are to be released.

        None is stopped if `max_wait` is given, and the one that runs has not taken so long.
        """
        with self._lock:
            if max_wait is not None and not self.is_stuck(max_wait):
                return []
            stopped, self._waiting = self._waiting, deque()
            unrecorded = _unrecorded(stopped)
            try:
                InPlaceCalls.record_together(self._engine, unrecorded)
            except Exception as problem:
                log.info(
                    "%d activations go on behind their last recorded call: %s",
                    len(unrecorded),
                    problem,
                    extra={"action": "calls_not_recorded"},
                )
        for one in stopped:
            one.rounds.close()
        # A process that ends has released them itself.
        return [one.entry for one in stopped if one.entry.state in ClaimState.ACTIVE]


def _unrecorded(activations: Iterable[_Activation]) -> list[InPlaceCalls]:
    return [one.calls for one in activations if one.calls is not None and one.unrecorded]

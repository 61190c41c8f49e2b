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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from flowengine.engine import Engine
from flowengine.evaluator.triggers import Outcome
from flowengine.store.failures import is_unavailable
from flowengine.worker.activations import Rounds
from flowengine.worker.claimed_tasks import ClaimedTask, ClaimedTasks, ClaimState
from flowengine.worker.in_place_calls import InPlaceCalls

log = logging.getLogger("flowengine")

_MOST_CALLS = 100  #: that wait for the end of their round; with more it is recorded early


@dataclass(slots=True)
class _Activation:
    entry: ClaimedTask
    rounds: Rounds[Outcome | None]
    began: float = 0.0  #: without the time in which it waited for others
    calls: InPlaceCalls | None = None  #: since its first round
    paused: float = 0.0  #: since then it waits for its next round

    @property
    def unrecorded(self) -> int:
        return 0 if self.calls is None else self.calls.to_record


class InterleavedActivations:
    """Runs activations of different runs, all in the thread that calls `run`.

    Invariant: an activation is run by that thread, or is one of `_waiting`. The thread that takes
    it out of there, with the lock, has it alone: to run it, or to stop those that wait. The
    coroutine of a stopped one is closed by the thread that ran it: closing runs `finally` blocks.
    """

    def __init__(
        self,
        engine: Engine,
        claimed: ClaimedTasks,
        activations: Iterable[tuple[ClaimedTask, Rounds[Outcome | None]]],
        seconds: float,
        release: Callable[[list[ClaimedTask]], object],
        is_stopping: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A round that takes longer than `seconds` is recorded before all have run.

        When the process `is_stopping`, those that wait are given to `release`.
        """
        self._engine, self._claimed = engine, claimed
        self._seconds, self._clock = seconds, clock
        self._release, self._is_stopping = release, is_stopping
        self._waiting = deque(_Activation(*one) for one in activations)
        self._left = len(self._waiting)  #: the first ones, which have not run in this round
        self._stopped: list[_Activation] | None = []  #: to be closed; None: the thread has left
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
        self.current = None
        if self._waiting and self._is_stopping():
            self.stop_waiting()
        if self._stopped:
            self._close_stopped()
        with self._lock:
            if not self._waiting:
                # Alone it records its calls itself, and the guard has nothing to stop.
                self.current = None if before is None else before.entry
                return before
            now = self._clock()
            if before is not None:
                self._pause(before, now)
            # One whose calls were recorded early runs again behind those that have not run yet.
            if not self._left or self._unrecorded >= _MOST_CALLS or now > self._record_at:
                self._record()
                self._left, now = len(self._waiting), self._clock()
                self._record_at = now + self._seconds
            one = self._waiting.popleft()
            self._left -= 1
            if one.calls is None:
                one.began = now
            else:
                one.began += now - one.paused
                one.calls.resume(now - one.paused)
                self._claimed.resume(one.entry)
            self._since, self.current = now, one.entry
            return one

    def _pause(self, one: _Activation, now: float) -> None:
        assert one.calls is not None
        self._claimed.pause(one.entry)
        one.paused = now
        self._unrecorded += one.unrecorded
        self._waiting.append(one)

    def _record(self) -> None:
        """Record the calls of those that wait by one commit; if it is refused, each its own."""
        unrecorded = [one for one in self._waiting if one.unrecorded]
        if len(unrecorded) > 1:
            try:
                with self._in_flight(unrecorded):
                    _record_together(self._engine, unrecorded)
            except Exception as problem:
                log.debug("the calls of activations are not recorded together: %s", problem)
                if is_unavailable(problem):
                    # Nothing is known of this commit, and the next one would wait as long.
                    for one in unrecorded:
                        assert one.calls is not None
                        one.calls.refuse(problem)
        self._unrecorded = 0

    @contextmanager
    def _in_flight(self, activations: Sequence[_Activation]) -> Iterator[None]:
        """Count a death of the process as a loss of these: their record may be its cause."""
        for one in activations:
            self._claimed.resume(one.entry)
        try:
            yield
        finally:
            for one in activations:
                self._claimed.pause(one.entry)

    # --- for the guard of the batch, and for a thread that is interrupted ---

    def is_stuck(self, max_wait: float) -> bool:
        """Whether others wait behind one that has run for longer."""
        is_running = self.current is not None  # else the calls of a round are recorded
        return is_running and bool(self._waiting) and self._clock() - self._since > max_wait

    def stop_waiting(self, max_wait: float | None = None) -> None:
        """Record the calls of the activations that wait, and release these.

        None is stopped if `max_wait` is given, and the one that runs has not taken so long.
        """
        with self._lock:
            if max_wait is not None and not self.is_stuck(max_wait):
                return
            stopped, self._waiting = self._waiting, deque()
        # Without the lock: the one that runs must not wait for this commit.
        self._record_stopped([one for one in stopped if one.unrecorded])
        # A process that ends has released them itself.
        if left := [one.entry for one in stopped if one.entry.state in ClaimState.ACTIVE]:
            self._release(left)
        with self._lock:
            if self._stopped is not None:
                self._stopped.extend(stopped)
                return
        _close(stopped)

    def _record_stopped(self, stopped: Sequence[_Activation]) -> None:
        try:
            _record_together(self._engine, stopped)
        except Exception as problem:
            if len(stopped) > 1 and not is_unavailable(problem):
                for one in stopped:  # one of them was refused, and with it the others
                    self._record_stopped([one])
                return
            log.info(
                "%d activations go on behind their last recorded call: %s",
                len(stopped),
                problem,
                extra={"action": "calls_not_recorded"},
            )

    def close(self) -> None:
        """Close the coroutines of those that were stopped; called when the thread leaves."""
        with self._lock:
            stopped, self._stopped = self._stopped, None
        _close(stopped or ())

    def _close_stopped(self) -> None:
        with self._lock:
            stopped, self._stopped = self._stopped, []
        _close(stopped or ())


def _record_together(engine: Engine, activations: Iterable[_Activation]) -> None:
    InPlaceCalls.record_together(
        engine, [one.calls for one in activations if one.calls is not None]
    )


def _close(stopped: Iterable[_Activation]) -> None:
    for one in stopped:
        one.rounds.close()

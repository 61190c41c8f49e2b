"""Activations that one thread runs in turns, so that one commit records the calls of several.

Most of the time of a small durable function is spent on the commits that record its calls. So the
quick activations of a batch take turns. Each runs until it has made calls with effects, which must
be recorded before their ends are told. When all have had their turn, one commit records the calls
of all, and the next round begins. A function takes as many commits as its longest row of calls, and
shares each of them.

A turn may take longer than expected. Then the guard of the batch stops those that wait: their calls
are recorded, their coroutines dropped, and any worker replays them from there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flowengine.engine import Engine
from flowengine.errors import StoreError
from flowengine.evaluator.triggers import Outcome
from flowengine.store.failures import DatabaseFailure
from flowengine.worker.activation_probe import ActivationProbe
from flowengine.worker.activations import Rounds
from flowengine.worker.claimed_tasks import ClaimedTask, ClaimedTasks, ClaimState
from flowengine.worker.in_place_calls import InPlaceCalls

log = logging.getLogger("flowengine")

_MOST = 100  #: calls that wait for the end of their round; above, they are recorded before it


@dataclass(slots=True)
class _Turn:
    entry: ClaimedTask
    rounds: Rounds[Outcome | None]
    unrecorded: InPlaceCalls | None = None  #: since its last turn


class ActivationTurns:
    """Runs activations of different runs, all in the thread that calls `run`.

    Invariant: an activation is with that thread while it has its turn, and else in `_waiting`,
    which the guard may empty at any time.
    """

    def __init__(
        self,
        engine: Engine,
        claimed: ClaimedTasks,
        activations: Iterable[tuple[ClaimedTask, Rounds[Outcome | None]]],
        seconds: float,
        probe: ActivationProbe,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A round is recorded after that many seconds, if not all have had their turn."""
        self._engine, self._claimed, self._seconds = engine, claimed, seconds
        self._probe, self._clock = probe, clock
        self._waiting = deque(_Turn(*one) for one in activations)
        self._lock = threading.Lock()
        self.current: ClaimedTask | None = None  #: the one that has its turn
        self._since = clock()  #: the beginning of its turn
        self._record_at = self._since + seconds
        self._due = 0  #: calls of those that wait

    def run(self, finish: Callable[[ClaimedTask, Outcome], object]) -> int:
        """Run all; call `finish` with each outcome that is to be reported, return their number."""
        finished = 0
        while (turn := self._next()) is not None:
            try:
                with self._probe.over(turn.entry.task):
                    unrecorded = next(turn.rounds)
            except StopIteration as ended:
                if ended.value is not None:
                    finish(turn.entry, ended.value)
                    finished += 1
            else:
                if self._waiting:
                    self._claimed.pause(turn.entry)
                with self._lock:
                    turn.unrecorded, self._due = unrecorded, self._due + unrecorded.due
                    self._waiting.append(turn)
        return finished

    def _next(self) -> _Turn | None:
        with self._lock:
            self.current = None
            if not self._waiting:
                return None
            now = self._clock()
            is_round_over = self._waiting[0].unrecorded is not None
            if is_round_over or self._due >= _MOST or now > self._record_at:
                self._record()
                now = self._clock()
                self._record_at = now + self._seconds
            turn = self._waiting.popleft()
            self.current, self._since = turn.entry, now
            self._claimed.resume(turn.entry)
            return turn

    def _record(self) -> None:
        """Record the calls of those that wait by one commit; else each records its own."""
        unrecorded = [turn.unrecorded for turn in self._waiting if turn.unrecorded is not None]
        self._due = 0
        for turn in self._waiting:
            turn.unrecorded = None
        if len(unrecorded) < 2:
            return
        try:
            InPlaceCalls.record_together(self._engine, unrecorded)
        except (DatabaseFailure, StoreError) as problem:
            log.debug("the calls of activations are recorded one by one: %s", problem)

    # --- for the guard of the batch ---

    def is_stuck(self, max_wait: float) -> bool:
        """Whether others wait behind one whose turn takes longer."""
        is_running = self.current is not None  # else the calls of a round are recorded
        return is_running and bool(self._waiting) and self._clock() - self._since > max_wait

    def take_waiting(self) -> list[ClaimedTask]:
        """Stop those that wait for their turn, and return them: they are to be released."""
        with self._lock:
            stopped, self._waiting = self._waiting, deque()
            unrecorded = [turn.unrecorded for turn in stopped if turn.unrecorded is not None]
            try:
                InPlaceCalls.record_together(self._engine, unrecorded)
            except (DatabaseFailure, StoreError) as problem:
                # As for one that cannot record its calls: it is repeated behind the last that were.
                log.info(
                    "%d activations go on behind their last recorded calls: %s",
                    len(unrecorded),
                    problem,
                    extra={"action": "calls_not_recorded"},
                )
        for turn in stopped:
            turn.rounds.close()
        # A process that ends has released them itself.
        return [turn.entry for turn in stopped if turn.entry.state in ClaimState.ACTIVE]

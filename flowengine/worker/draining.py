"""Answer a bell: claim what is due, run it, report it, until nothing is left.

Tasks that are known to be quick are claimed together and reported together. What a report
makes ready is gone on with at once, for a time slice; then others have their turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from flowengine.engine import Engine
from flowengine.engine.marks import Marks
from flowengine.engine.settling import Report
from flowengine.engine.sweeps import dropped_tries
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.happenings import HandedOver, Lost, TryOutcome
from flowengine.store.claims import Claimant
from flowengine.store.outages import is_away
from flowengine.store.sweeping import held_of
from flowengine.worker.circuits import Circuits
from flowengine.worker.continuing import Continuation
from flowengine.worker.hand import Guard, Hand
from flowengine.worker.headroom import with_headroom
from flowengine.worker.holdings import Holdings
from flowengine.worker.pace import Pace
from flowengine.worker.tally import Tally
from flowengine.worker.trying import run_try
from flowengine.worker.upkeep import Upkeep


class Drainer:
    """Works on tasks for one server. Shared by all threads of its pool."""

    def __init__(
        self,
        engine: Engine,
        claimant: Claimant,
        names: Callable[[], Sequence[str]],
        lists: Callable[[], Collection[str]] = tuple,
        show: Callable[[TaskDefinition, TryOutcome | HandedOver, float], object] | None = None,
        circuits: Circuits | None = None,
    ) -> None:
        self._engine, self._claimant, self._names, self._lists = engine, claimant, names, lists
        self._show = show
        self._circuits = circuits or Circuits(engine.settings)
        settings = engine.settings
        self.holdings = Holdings(engine, claimant)
        self._marks = Marks(settings.spool_directory, claimant.boot_id)
        self.tally = Tally(engine.database, claimant.server_id)
        self._upkeep = Upkeep(
            settings.heartbeat_interval, [self.tally.flush, self.holdings.hand_back_forgotten]
        )
        self._pace = Pace(settings.quick_seconds)
        self._guard = Guard(settings.hand_patience, self._relieve)
        self._last_facet: dict[str, str] = {}  #: that was claimed of each list
        self._stopping = False

    # --- what the doorways call ---

    @with_headroom
    def drain(self, task_list: str, wake: int = 1) -> int:
        """Work until the list has nothing for us or the slice is over; return what was done.

        With `wake` above 1 the bell was meant for so many: they are woken as soon as it shows
        that there is more to do than we took, and not at all when we took everything.
        A slice that ends rings again: other lists must have their turn in this pool.
        """
        self._upkeep.begin()  # before a claim: its answer may be lost
        ends = self._slice_ends()
        done = 0
        while not self._stopping:
            names = self._names()
            quick = self._pace.quick(names, self._last_facet.get(task_list, ""))
            claim = self._engine.claim_batch(
                names,
                task_list,
                self._claimant,
                most=self._most(quick, self._engine.settings.batch),
                quick=quick,
            )
            if not claim.tasks:
                return done
            self._last_facet[task_list] = claim.tasks[-1].name
            if claim.is_more and wake > 1:
                self._wake_others(task_list, wake - 1, one_by_one=len(claim.tasks) > 1)
                wake = 1
            elif claim.passed_over:
                self._engine.bell.ring({task_list: claim.passed_over})
            done += self._work_through(claim.tasks, ends)
            if not claim.is_more:
                return done  # what has become due since was rung for
            if time.monotonic() > ends:
                self._engine.bell.ring({task_list: 1})
                return done
        return done

    def _wake_others(self, task_list: str, number: int, *, one_by_one: bool) -> None:
        """Pass a bell on. Each of two wakes half of the rest: a pool is awake in a few hops.

        For quick tasks one after the other is enough: they may be done before many could come.
        """
        half = 0 if one_by_one else number // 2
        for part in (number - half, half):
            if part:
                self._engine.bell.ring({task_list: part})

    @with_headroom
    def work(self, task_list: str, task_ids: Sequence[str]) -> int:
        """Work on these tasks, as a chord's header: its callback evaluates, so we do not.

        Until the facet is known to be quick they are claimed one by one: those behind one
        that turns out slow are free for others, who are told so at once.
        """
        self._upkeep.begin()
        ends = time.monotonic() + self._engine.settings.batch_slice
        left, done, is_told = list(task_ids), 0, False
        fruitless: set[str] = set()  # quick facets of which none was found
        while left:
            if self._stopping or time.monotonic() > ends:
                self._engine.bell.ring({task_list: len(left)})
                break
            last = self._last_facet.get(task_list, "")
            quick = [] if last in fruitless else self._pace.quick([last], last)
            # All of them are one run's: more than a batch cost hardly more than one.
            most = self._most(quick, len(left) if self._engine.settings.batch > 1 else 1)
            names = quick if most > 1 else self._names()
            claimed = self._engine.claim_these(left, self._claimant, names=names, most=most)
            if not claimed and most > 1:
                fruitless.add(last)  # these are another's, or have to be taken alone
                continue
            passed, left = _up_to(left, claimed)
            # Others have these, or have the code for them, or they are not quick.
            missing = len(passed) - len(claimed)
            if most == 1:
                missing, is_told = 0 if is_told else missing + len(left), True
            if missing:
                self._engine.bell.ring({task_list: missing})
            if not claimed:
                break
            if most > 1 and missing:
                self._last_facet.pop(task_list, None)
            else:
                self._last_facet[task_list] = claimed[-1].name
            done += self._work_through(claimed, ends, in_chord=True)
        return done

    def _most(self, quick: Sequence[str], limit: int) -> int:
        """How many to claim at once: a hand should be empty before the guard loses patience."""
        patience = self._engine.settings.hand_patience / 2
        return min(limit, self._pace.fitting(quick, patience))

    @with_headroom
    def advance(self, run_id: str) -> int:
        """Evaluate a run, and go on with what that makes ready."""
        self._upkeep.begin()
        ends = self._slice_ends()
        return self._work_through(self._engine.advance(run_id, self._taker(ends)), ends)

    def _slice_ends(self) -> float:
        return time.monotonic() + self._engine.settings.drain_slice

    # --- one hand ---

    def _work_through(
        self, tasks: Sequence[TaskDefinition], ends: float, *, in_chord: bool = False
    ) -> int:
        """Work on claimed tasks, and on what follows from them, until the hand is empty."""
        ours = self.holdings.hold(tasks)
        if not ours:
            return 0
        hand, done = Hand(ours), 0
        try:
            with self._guard.over(hand), self._engine.database.keeping():
                while True:
                    task = None if self._stopping else hand.next()
                    if task is not None:
                        done += self._run(task, hand)
                    elif reports := hand.take_done():
                        taker = self._taker(ends)
                        hand.add(self.holdings.report(reports, in_chord=in_chord, taker=taker))
                    else:
                        break
        finally:
            self._relieve(hand)  # whatever it was that ended it
        return done

    def _run(self, task: TaskDefinition, hand: Hand) -> bool:
        """Run a task of the hand; False: its circuit does not let it through, and it waits."""
        try:
            return self._try(task, hand)
        except BaseException as problem:
            # `sys.exit` in a facet, or a signal for this process. Were it no loss, a facet that
            # ends each process which runs it would never be given up.
            reason = f"{type(problem).__name__} ended the thread that worked on it"
            hand.finish(Report(task, Lost(reason)))
            raise

    def _try(self, task: TaskDefinition, hand: Hand) -> bool:
        passage = self._circuits.ask(task) if task.circuit else None
        if passage is not None and not passage.granted:
            # Nobody has to ask for the others of this hand: they would hear the same.
            self.holdings.park(hand.take_like(task), passage.retry_after)
            return False
        if not self._pace.is_quick(task.name):
            self._engine.database.bring_back()  # others may need a connection meanwhile
        began = time.monotonic()
        with self._marks.begun(task.uuid):
            outcome = run_try(self._engine, task, lambda: self._beat(task), passage)
        seconds = time.monotonic() - began
        self._pace.count(task.name, seconds)
        self.tally.count(task, outcome)
        if self._show is not None:
            self._show(task, outcome, seconds)
        hand.finish(Report(task, outcome))
        return True

    def _taker(self, ends: float) -> Continuation | None:
        settings = self._engine.settings
        if not settings.continuation or self._stopping or time.monotonic() > ends:
            return None
        return Continuation(
            self._claimant,
            self._pace,
            set(self._names()),
            self._lists(),
            batch=settings.batch,
            seconds=settings.hand_patience / 2,
        )

    def _relieve(self, hand: Hand) -> None:
        """Empty a hand of all but the task that runs: others can do it."""
        if waiting := hand.take_waiting():
            self.holdings.hand_back(waiting)
        if done := hand.take_done():
            self.holdings.report(done, in_chord=False, taker=None)

    def _beat(self, task: TaskDefinition) -> bool:
        try:
            return self._engine.heartbeat(task)
        except Exception as problem:
            if not is_away(problem):
                raise
            return True  # nobody can say that the task was taken away, so it goes on

    # --- the end ---

    def claim_no_more(self) -> None:
        self._stopping = True

    def stop(self, patience: float) -> None:
        """Claim nothing more, wait a moment for what runs, and hand the rest back."""
        self.claim_no_more()
        left = self.holdings.left_after(patience)
        dropped_tries(self._engine, [held_of(task) for task in left])
        self._upkeep.end()
        self.tally.flush()
        self._marks.forget_all()


def _up_to(task_ids: list[str], claimed: Sequence[TaskDefinition]) -> tuple[list[str], list[str]]:
    """Part the ids behind the last of those that were claimed."""
    taken = {task.uuid for task in claimed}
    behind = max((at for at, task_id in enumerate(task_ids, 1) if task_id in taken), default=0)
    return task_ids[:behind], task_ids[behind:]

"""Answer a bell: claim what is due, run it, report it, until nothing is left.

Tasks that are known to be quick are claimed together and reported together. What a report
makes ready is gone on with at once, for a time slice; then others have their turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from flowengine.engine import Engine
from flowengine.engine.in_flight import InFlightMarkers
from flowengine.engine.recovery import release_dropped
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import Lost, Outcome, Report
from flowengine.store.claims import WorkerIdentity
from flowengine.store.outages import is_away
from flowengine.store.recovery_queries import held_task
from flowengine.worker.background import BackgroundJobs
from flowengine.worker.batch import Batch, BatchGuard
from flowengine.worker.batch_sizing import BatchSizing
from flowengine.worker.breakers import CircuitBreakers
from flowengine.worker.claimed_tasks import ClaimedTasks
from flowengine.worker.continuation import Continuation
from flowengine.worker.counters import HandledCounters
from flowengine.worker.execution import execute_try
from flowengine.worker.stack_chunk import on_own_stack_chunk


class TaskWorker:
    """Works on tasks for one server. Shared by all threads of its pool."""

    def __init__(
        self,
        engine: Engine,
        identity: WorkerIdentity,
        names: Callable[[], Sequence[str]],
        lists: Callable[[], Collection[str]] = tuple,
        show: Callable[[TaskDefinition, Outcome, float], object] | None = None,
        breakers: CircuitBreakers | None = None,
    ) -> None:
        self._engine, self._identity, self._names, self._lists = engine, identity, names, lists
        self._show = show
        self._breakers = breakers or CircuitBreakers(engine.settings)
        settings = engine.settings
        self.claimed_tasks = ClaimedTasks(engine, identity)
        self._markers = InFlightMarkers(settings.spool_directory, identity.boot_id)
        self.counters = HandledCounters(engine.database, identity.server_id)
        self._background = BackgroundJobs(
            settings.heartbeat_interval, [self.counters.flush, self.claimed_tasks.release_forgotten]
        )
        self._sizing = BatchSizing(settings.quick_seconds)
        self._guard = BatchGuard(settings.batch_max_wait, self._empty_batch)
        self._last_facet: dict[str, str] = {}  #: that was claimed of each list
        self._stopping = False

    # --- what the doorways call ---

    @on_own_stack_chunk
    def drain(self, task_list: str, wake: int = 1) -> int:
        """Work until the list has nothing for us or the slice is over; return what was done.

        With `wake` above 1 the bell was meant for so many: they are woken as soon as it shows
        that there is more to do than we took, and not at all when we took everything.
        A slice that ends rings again: other lists must have their turn in this pool.
        """
        self._background.begin()  # before a claim: its answer may be lost
        ends = self._slice_ends()
        done = 0
        while not self._stopping:
            names = self._names()
            quick = self._sizing.quick(names, self._last_facet.get(task_list, ""))
            claim = self._engine.claim_batch(
                names,
                task_list,
                self._identity,
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
                self._engine.notifier.notify({task_list: claim.passed_over})
            done += self._work_through(claim.tasks, ends)
            if not claim.is_more:
                return done  # what has become due since was rung for
            if time.monotonic() > ends:
                self._engine.notifier.notify({task_list: 1})
                return done
        return done

    def _wake_others(self, task_list: str, number: int, *, one_by_one: bool) -> None:
        """Pass a bell on. Each of two wakes half of the rest: a pool is awake in a few hops.

        For quick tasks one after the other is enough: they may be done before many could come.
        """
        half = 0 if one_by_one else number // 2
        for part in (number - half, half):
            if part:
                self._engine.notifier.notify({task_list: part})

    @on_own_stack_chunk
    def work(self, task_list: str, task_ids: Sequence[str]) -> int:
        """Work on these tasks, as a chord's header: its callback evaluates, so we do not.

        Until the facet is known to be quick they are claimed one by one: those behind one
        that turns out slow are free for others, who are told so at once.
        """
        self._background.begin()
        ends = time.monotonic() + self._engine.settings.chord_time_slice
        left, done, is_told = list(task_ids), 0, False
        fruitless: set[str] = set()  # quick facets of which none was found
        while left:
            if self._stopping or time.monotonic() > ends:
                self._engine.notifier.notify({task_list: len(left)})
                break
            last = self._last_facet.get(task_list, "")
            quick = [] if last in fruitless else self._sizing.quick([last], last)
            # All of them are one run's: more than a batch cost hardly more than one.
            most = self._most(quick, len(left) if self._engine.settings.batch > 1 else 1)
            names = quick if most > 1 else self._names()
            claimed = self._engine.claim_these(left, self._identity, names=names, most=most)
            if not claimed and most > 1:
                fruitless.add(last)  # these are another's, or have to be taken alone
                continue
            passed, left = _up_to(left, claimed)
            # Others have these, or have the code for them, or they are not quick.
            missing = len(passed) - len(claimed)
            if most == 1:
                missing, is_told = 0 if is_told else missing + len(left), True
            if missing:
                self._engine.notifier.notify({task_list: missing})
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
        max_wait = self._engine.settings.batch_max_wait / 2
        return min(limit, self._sizing.fitting(quick, max_wait))

    @on_own_stack_chunk
    def advance(self, run_id: str) -> int:
        """Evaluate a run, and go on with what that makes ready."""
        self._background.begin()
        ends = self._slice_ends()
        return self._work_through(self._engine.advance(run_id, self._continuation(ends)), ends)

    def _slice_ends(self) -> float:
        return time.monotonic() + self._engine.settings.worker_time_slice

    # --- one hand ---

    def _work_through(
        self, tasks: Sequence[TaskDefinition], ends: float, *, in_chord: bool = False
    ) -> int:
        """Work on claimed tasks, and on what follows from them, until the hand is empty."""
        ours = self.claimed_tasks.hold(tasks)
        if not ours:
            return 0
        hand, done = Batch(ours), 0
        try:
            with self._guard.over(hand), self._engine.database.keep_connection():
                while True:
                    task = None if self._stopping else hand.next()
                    if task is not None:
                        done += self._run(task, hand)
                    elif reports := hand.take_done():
                        continuation = self._continuation(ends)
                        hand.add(
                            self.claimed_tasks.report(
                                reports, in_chord=in_chord, continuation=continuation
                            )
                        )
                    else:
                        break
        finally:
            self._empty_batch(hand)  # whatever it was that ended it
        return done

    def _run(self, task: TaskDefinition, hand: Batch) -> bool:
        """Run a task of the hand; False: its circuit does not let it through, and it waits."""
        try:
            return self._try(task, hand)
        except BaseException as problem:
            # `sys.exit` in a facet, or a signal for this process. Were it no loss, a facet that
            # ends each process which runs it would never be given up.
            reason = f"{type(problem).__name__} ended the thread that worked on it"
            hand.finish(Report(task, Lost(reason)))
            raise

    def _try(self, task: TaskDefinition, hand: Batch) -> bool:
        permit = self._breakers.permit(task) if task.circuit else None
        if permit is not None and not permit.granted:
            # Nobody has to ask for the others of this hand: they would hear the same.
            self.claimed_tasks.park(hand.take_like(task), permit.retry_after)
            return False
        if not self._sizing.is_quick(task.name):
            self._engine.database.return_connection()  # others may need a connection meanwhile
        began = time.monotonic()
        with self._markers.begun(task.uuid):
            outcome = execute_try(self._engine, task, lambda: self._beat(task), permit)
        seconds = time.monotonic() - began
        self._sizing.count(task.name, seconds)
        self.counters.count(task, outcome)
        if self._show is not None:
            self._show(task, outcome, seconds)
        hand.finish(Report(task, outcome))
        return True

    def _continuation(self, ends: float) -> Continuation | None:
        settings = self._engine.settings
        if not settings.continuation or self._stopping or time.monotonic() > ends:
            return None
        return Continuation(
            self._identity,
            self._sizing,
            set(self._names()),
            self._lists(),
            batch=settings.batch,
            seconds=settings.batch_max_wait / 2,
        )

    def _empty_batch(self, hand: Batch) -> None:
        """Empty a hand of all but the task that runs: others can do it."""
        if waiting := hand.take_waiting():
            self.claimed_tasks.release_by_lease(waiting)
        if done := hand.take_done():
            self.claimed_tasks.report(done, in_chord=False, continuation=None)

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

    def stop(self, max_wait: float) -> None:
        """Claim nothing more, wait a moment for what runs, and hand the rest back."""
        self.claim_no_more()
        left = self.claimed_tasks.left_after(max_wait)
        release_dropped(self._engine, [held_task(task) for task in left])
        self._background.end()
        self._guard.end()
        self.counters.flush()
        self._markers.forget_all()


def _up_to(task_ids: list[str], claimed: Sequence[TaskDefinition]) -> tuple[list[str], list[str]]:
    """Part the ids behind the last of those that were claimed."""
    taken = {task.uuid for task in claimed}
    behind = max((at for at, task_id in enumerate(task_ids, 1) if task_id in taken), default=0)
    return task_ids[:behind], task_ids[behind:]

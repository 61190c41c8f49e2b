"""Answer a wake-up: claim due tasks, execute and report them, until none is left.

Quick tasks are claimed and reported in batches. The worker continues with the tasks that its
reports make ready, for a time slice; then other task lists have their turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext

from flowengine.agents import agents_of
from flowengine.authoring import event_facet_named
from flowengine.dispatch import NO_PROMISE, ClaimPromise
from flowengine.engine import Engine
from flowengine.engine.in_flight import InFlightMarkers
from flowengine.evaluator import TaskDefinition
from flowengine.store.claims import Claim, WorkerIdentity
from flowengine.worker.background import BackgroundJobs, HandledCounters
from flowengine.worker.batch import Batch, BatchGuard, BatchSizing
from flowengine.worker.breakers import CircuitBreakers
from flowengine.worker.claimed_tasks import ClaimedTasks
from flowengine.worker.continuations import Continuation
from flowengine.worker.handlers import FindHandler, NameSet
from flowengine.worker.item_gate import ItemGate
from flowengine.worker.lost_leases import LostLeases
from flowengine.worker.stack_chunk import on_own_stack_chunk
from flowengine.worker.step_logs import StepLogs
from flowengine.worker.task_client import TaskClient
from flowengine.worker.tenant_usage import TenantUsage
from flowengine.worker.time_slice import TimeSlice
from flowengine.worker.tries import Show, Storable, Tries


class TaskWorker:
    """Works on tasks for one server. Shared by all threads of its pool."""

    def __init__(
        self,
        engine: Engine,
        identity: WorkerIdentity,
        names: Callable[[], Sequence[str]],
        lists: Callable[[], Collection[str]] = tuple,
        show: Show | None = None,
        breakers: CircuitBreakers | None = None,
        flush: Callable[[], object] = lambda: None,
        find: FindHandler = event_facet_named,
        storable: Storable | None = None,
        async_limit: int = 0,
        gate: ItemGate | None = None,
        promise: Callable[[str], ClaimPromise] = lambda _: NO_PROMISE,
    ) -> None:
        """`show` is called for each try that has ended, `flush` after some of them.

        `names` are the facets that `find` has code for. `storable` checks outcomes in place of the
        engine, `async_limit` replaces the setting `async_concurrency`, `gate` lets claimed tasks
        start. Threads that work on quick tasks `promise` to claim from the task list again.
        """
        self._promise = promise
        self._engine, self._identity, self._names, self._lists = engine, identity, names, lists
        # Every process that works on runs wakes agents, and recovers them if it is the watchdog.
        agents_of(engine)
        settings = engine.settings
        markers = InFlightMarkers(settings.spool_directory, identity.boot_id)
        self.claimed_tasks = ClaimedTasks(markers)
        self.logs = StepLogs(engine) if settings.log_capture else None
        self.client = TaskClient(engine, identity, self.claimed_tasks, gate, self.logs)
        self.counters = HandledCounters(engine.database, identity.server_id)
        self._sizing = BatchSizing(settings.quick_seconds)
        breakers = breakers or CircuitBreakers(settings)
        breakers.obey(engine.breakers)
        self._tries = Tries(
            engine,
            identity,
            self.client,
            self._sizing,
            self.counters,
            breakers,
            show,
            names=names,
            flush=flush,
            find=find,
            storable=storable,
            async_limit=async_limit,
            logs=self.logs,
            lists=lists,
            is_stopping=lambda: self._stopping,
        )
        self.async_tries = self._tries.in_loop
        self.lost_leases = LostLeases(engine, identity, self.claimed_tasks, self.async_tries)
        jobs = (
            self.counters.flush,
            self.client.reconcile,
            self.client.remove_stale_markers,
            self.lost_leases.check,
            self._tries.check_activations,
        )
        self._background = BackgroundJobs(settings.heartbeat_interval, jobs)
        self._guard = BatchGuard(settings.batch_max_wait, self._empty_batch)
        self._last_facet: dict[str, str] = {}  #: claimed last from each task list
        self._usage = TenantUsage()
        self._name_set = NameSet()
        self._stopping = False

    # --- called by the Celery tasks ---

    @on_own_stack_chunk
    def drain(self, task_list: str, wake: int = 1) -> int:
        """Work until no task of the list is due for us or the slice ends; return the number done.

        With `wake` above 1 the wake-up was meant for `wake` workers. The others are woken only
        if there is more to do than this one claims. At the end of its slice a worker sends another
        wake-up, so that other lists have their turn in this pool.
        """
        self._background.begin()  # before a claim: its response may be lost
        time_slice = self._time_slice()
        promise = self._promise(task_list)
        try:
            return self._drain(task_list, wake, time_slice, promise)
        finally:
            promise.withdraw()

    def _drain(
        self, task_list: str, wake: int, time_slice: TimeSlice, promise: ClaimPromise
    ) -> int:
        done = 0
        while not self._stopping:
            wake = max(wake, promise.claim())
            claim = self._claim(task_list, wake)
            if not claim.tasks:
                if promise.end():
                    return done
                continue
            promise.claimed(all(self._sizing.is_quick(task.name) for task in claim.tasks))
            if claim.is_more and wake > 1:
                self._wake_others(task_list, wake - 1, one_by_one=len(claim.tasks) > 1)
                wake = 1
            elif claim.passed_over:
                self._engine.notifier.notify({task_list: claim.passed_over})
            done += self._work_through(claim.tasks, time_slice, promise=promise)
            # Tasks that became due since then have a wake-up of their own, which a server with
            # limits may have answered without room for them.
            if promise.leave_to_others(claim.is_more or claim.is_limited):
                return done
            if not claim.is_more and not claim.is_limited and promise.end():
                return done
            if time_slice.has_elapsed:
                promise.withdraw()
                self._engine.notifier.notify(dict.fromkeys((task_list, *claim.full_lists), 1))
                return done
        return done

    @on_own_stack_chunk
    def poll(self, task_list: str, most: int) -> int:
        """Work on up to `most` due tasks in this thread; return their number. Starts no thread.

        One by one: the timeout of a task that is claimed runs, also while it waits for another.
        """
        done = 0
        while done < most and not self._stopping:
            tasks = self._engine.claim(self._names(), task_list, self._identity, most=1)
            if not tasks:
                break
            done += self._work_through(tasks, None, is_guarded=False)
        return done

    @on_own_stack_chunk
    def poll_this(self, task_list: str, task_id: str) -> int:
        """Work on one due task in this thread; 0 if another holds it. Starts no thread."""
        task = self._engine.claim_one(task_id, task_list, self._identity)
        return 0 if task is None else self._work_through([task], None, is_guarded=False)

    def _claim(self, task_list: str, wake: int = 1) -> Claim:
        """Claim due tasks of a list, last of all those of the tenant that was served longest."""
        names = self.async_tries.claimable(self._names(), task_list, wake)
        quick = self._sizing.quick(names, self._last_facet.get(task_list, ""))
        claim = self._engine.claim_batch(
            names,
            task_list,
            self._identity,
            most=self._most(quick, self._engine.settings.batch),
            quick=quick,
            after=self._usage.last_to_serve(),
        )
        if claim.tasks:
            self._last_facet[task_list] = claim.tasks[-1].name
        return claim

    def _wake_others(self, task_list: str, number: int, *, one_by_one: bool) -> None:
        """Pass a wake-up on. Each of two wakes half of the rest: a pool is awake in a few hops.

        Quick tasks are passed on one by one: they may be done before many workers could come.
        """
        half = 0 if one_by_one else number // 2
        for part in (number - half, half):
            if part:
                self._engine.notifier.notify({task_list: part})

    @on_own_stack_chunk
    def work(self, task_list: str, task_ids: Sequence[str]) -> int:
        """Work on these tasks, as a chord's header: its callback evaluates, so we do not.

        They are claimed one by one until their facet is known to be quick, so that tasks behind
        a slow one are free for other workers, which are woken at once.
        """
        self._background.begin()
        # Never prolonged: the callback of the chord waits for its headers.
        time_slice = TimeSlice(self._engine.settings.chord_time_slice)
        left, done, is_notified = list(task_ids), 0, False
        serves_others, is_limited = True, False
        fruitless: set[str] = set()  # quick facets of which no task could be claimed
        while left:
            if self._stopping or time_slice.has_elapsed:
                self._engine.notifier.notify({task_list: len(left)})
                break
            last = self._last_facet.get(task_list, "")
            quick = [] if last in fruitless else self._sizing.quick([last], last)
            # All belong to one run, so exceeding `batch` is nearly free.
            most = self._most(quick, len(left) if self._engine.settings.batch > 1 else 1)
            names = quick if most > 1 else self.async_tries.claimable(self._names(), task_list)
            claim = self._engine.claim_these(
                left, task_list, self._identity, names=names, most=most
            )
            claimed, is_limited = claim.tasks, claim.is_limited
            if not claimed and most > 1:
                fruitless.add(last)  # taken by another worker, or to be claimed one by one
                continue
            passed, left = _up_to(left, claimed)
            # Not claimed: taken by another worker, no handler here, or too slow to batch.
            missing = len(passed) - len(claimed)
            if most == 1:
                missing, is_notified = 0 if is_notified else missing + len(left), True
            if missing:
                self._engine.notifier.notify({task_list: missing})
            if not claimed:
                break
            if most > 1 and missing:
                self._last_facet.pop(task_list, None)
            else:
                self._last_facet[task_list] = claimed[-1].name
            done += self._work_through(claimed, time_slice, in_chord=True)
            if claim.is_more and serves_others:
                others, serves_others = self._serve_others(task_list)
                done += others
        if done and is_limited:
            self._engine.notifier.notify({task_list: 1})  # there is room for whatever waits
        return done

    def _serve_others(self, task_list: str) -> tuple[int, bool]:
        """Work on due tasks of the tenants that were served less than the heaviest one.

        Their wake-ups may wait in the broker's queue, behind messages of the heaviest tenant.
        Returns the number done, and whether there were tasks of others that this process serves.
        """
        done, is_found, heaviest = 0, False, self._usage.heaviest
        while not self._stopping and self._usage.heaviest == heaviest:
            claim = self._claim(task_list)
            if claim.passed_over:
                self._engine.notifier.notify({task_list: claim.passed_over})
            done += self._work_through(claim.tasks, self._single_slice())
            if not claim.tasks or claim.tasks[0].tenant == heaviest:
                break
            is_found = True
        return done, is_found

    def _most(self, quick: Sequence[str], limit: int) -> int:
        """How many tasks to claim: a batch should be done well before the guard empties it."""
        max_wait = self._engine.settings.batch_max_wait / 2
        return min(limit, self._sizing.fitting(quick, max_wait))

    @on_own_stack_chunk
    def advance(self, run_id: str) -> int:
        """Evaluate a run, and continue with the tasks that become ready."""
        self._background.begin()
        time_slice = self._time_slice()
        tasks = self._engine.advance(run_id, self._continuation(time_slice))
        done = self._work_through(tasks, time_slice)
        if time_slice.has_elapsed:
            done += sum(self._serve_others(task_list)[0] for task_list in self._lists())
        return done

    def _time_slice(self) -> TimeSlice:
        return TimeSlice(self._engine.settings.worker_time_slice, self._others_wait)

    def _single_slice(self) -> TimeSlice:
        return TimeSlice(self._engine.settings.worker_time_slice)

    def _others_wait(self) -> bool:
        return self._engine.is_work_due(self._lists())

    # --- one batch ---

    def _work_through(
        self,
        tasks: Sequence[TaskDefinition],
        time_slice: TimeSlice | None,
        *,
        in_chord: bool = False,
        is_guarded: bool = True,
        promise: ClaimPromise = NO_PROMISE,
    ) -> int:
        """Work on claimed tasks, and on their continuations, until the batch is empty.

        Without a slice, on the claimed tasks alone.
        """
        ours = self.client.take(tasks)
        if not ours:
            return 0
        batch, done, began = Batch(self.claimed_tasks, ours, promise), 0, time.monotonic()
        try:
            guard = self._guard.over(batch) if is_guarded else nullcontext()
            with guard, self._engine.database.keep_connection():
                self._tries.prepare(ours)
                while True:
                    entry = None if self._stopping else batch.next()
                    if entry is not None:
                        if not self._sizing.is_quick(entry.task.name):
                            promise.withdraw()
                        done += self._tries.run(entry, batch)
                    elif batch.has_finished:
                        # They stay in the batch, which is emptied whatever this raises.
                        policy = self._continuation(time_slice)
                        finished = batch.take_finished()
                        batch.add(
                            self.client.report(finished, in_chord=in_chord, continuation=policy)
                        )
                    else:
                        break
        finally:
            self._empty_batch(batch)  # also if an exception ends this thread
            self._usage.count(tasks[0].tenant, time.monotonic() - began)
        return done

    def _continuation(self, time_slice: TimeSlice | None) -> Continuation | None:
        settings = self._engine.settings
        if time_slice is None or not settings.continuation or self._stopping:
            return None
        if self._engine.limited_claims.apply_to(self._identity):
            return None  # the commit of a report knows nothing of limits: a claim does
        if time_slice.is_over():
            return None
        return Continuation(
            self._identity,
            self._sizing,
            self._name_set.of(self.async_tries.claimable(self._names())),
            self._lists(),
            batch=settings.batch,
            seconds=settings.batch_max_wait / 2,
            ahead=self._tries.ahead,
        )

    def _empty_batch(self, batch: Batch) -> None:
        """Take everything but the running task out of a batch."""
        batch.stop_interleaved(self._engine.settings.batch_max_wait)
        if unstarted := batch.take_unstarted():
            self.client.release(unstarted)
        if finished := batch.take_finished():
            self.client.report(finished)

    # --- the end ---

    def claim_no_more(self) -> None:
        self._stopping = True
        self.async_tries.stop_claiming()

    def stop(self, max_wait: float) -> None:
        self.claim_no_more()
        if self.async_tries.is_busy:
            self.claimed_tasks.wait_until_idle(max_wait)
            self.async_tries.cancel_running()
            max_wait = 0.0
        self.client.release_active(max_wait)
        self.end()

    def end(self) -> None:
        self._background.end()
        self._guard.end()
        self.async_tries.end()
        self._tries.kept_functions.clear()
        self.counters.flush()
        self.client.end()
        if self.logs is not None:
            self.logs.end()


def _up_to(task_ids: list[str], claimed: Sequence[TaskDefinition]) -> tuple[list[str], list[str]]:
    """Split the ids behind the last claimed one."""
    taken = {task.uuid for task in claimed}
    behind = max((at for at, task_id in enumerate(task_ids, 1) if task_id in taken), default=0)
    return task_ids[:behind], task_ids[behind:]

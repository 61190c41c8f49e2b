"""The tries of async facets: coroutines on the event loop of the process, and the thread for them.

A pool thread begins a coroutine, waits for some milliseconds and leaves it to this thread, which
reports its outcome and claims more tasks of async facets while there is room. So one thread or pool
child serves many tries that wait. Their end is noticed in the loop; everything that may block it,
as validation and the database, is done by the thread.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from flowengine.authoring import event_facet_named
from flowengine.engine import Engine
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import Lost, Outcome
from flowengine.event_loop import event_loop
from flowengine.store.claims import WorkerIdentity
from flowengine.worker.async_try import AsyncTry
from flowengine.worker.child_starts import ChildNotStarted
from flowengine.worker.claimed_tasks import ClaimedTask, ClaimEvent, ClaimState
from flowengine.worker.continuations import AsyncContinuation
from flowengine.worker.execution import Attempt
from flowengine.worker.handlers import FindHandler
from flowengine.worker.loop_probe import LoopProbe
from flowengine.worker.outage_log import outage_log
from flowengine.worker.task_client import TaskClient

log = logging.getLogger("flowengine")

_END_SECONDS = 1.0  # that cancelled coroutines get to clean up when the process ends
_FAILED_SECONDS = 1.0  # between a pass that failed and the next one
_SHOWN = 3  # ended tries that a log line names
_POLL_SECONDS = 0.2  # between two looks whether a shutdown has become a cold one

Begin = Callable[[ClaimedTask], Outcome | AsyncTry | None]
Settle = Callable[[TaskDefinition, Outcome, float, Callable[[Outcome], bool]], bool]


class AsyncTries:
    """Shared by all threads of a process."""

    def __init__(
        self,
        engine: Engine,
        identity: WorkerIdentity,
        client: TaskClient,
        names: Callable[[], Sequence[str]],
        begin: Begin,
        settle: Settle,
        flush: Callable[[], object],
        find: FindHandler = event_facet_named,
        limit: int = 0,
    ) -> None:
        """`begin` begins a claimed task; `settle` checks an outcome, finishes its task with it by
        a function that it is given, and counts it. `limit` replaces the setting.
        """
        self._engine, self._identity, self._client = engine, identity, client
        self._names, self._begin, self._settle, self._flush = names, begin, settle, flush
        self._find = find
        self._limit = limit or engine.settings.async_concurrency
        self._blocked_seconds = engine.settings.async_blocked_seconds
        self._outages = outage_log(engine.settings.database_url)
        self._changed = threading.Condition()
        self._places: set[ClaimedTask] = set()  #: one for each try that has begun
        self._running: set[AsyncTry] = set()  #: adopted
        self._ended: list[AsyncTry] = []
        self._lists: dict[str, int] = {}  #: to claim from, and the workers that a wake-up is for
        self._tenant = ""  #: whose tasks were claimed last: the others come first
        self._is_stopping = self._is_over = False
        self._probe = LoopProbe(self._blocked_seconds)
        self._thread = threading.Thread(
            target=self._serve, name="flowengine-async-tries", daemon=True
        )

    # --- called by pool threads ---

    def is_async(self, name: str) -> bool:
        """Whether the facet of that name is an async one, with code in this process."""
        handler = self._find(name)
        return handler is not None and handler.is_async

    @property
    def room(self) -> int:
        return self._limit - len(self._places)

    def claimable(self, names: Sequence[str], task_list: str = "", wake: int = 1) -> Sequence[str]:
        """Return the facets that a pool thread claims: while coroutines run, no async ones.

        Those of the task list are claimed by the thread of this object.
        """
        if not self._places:
            return names
        if task_list:
            with self._changed:
                self._lists[task_list] = max(wake, self._lists.get(task_list, 0))
                self._changed.notify()
        return [name for name in names if not self.is_async(name)]

    def declined(self) -> Sequence[str]:
        """Return the facets that this process has no room for."""
        return [] if self.room > 0 else self._async_names()

    def _async_names(self) -> list[str]:
        return [name for name in self._names() if self.is_async(name)]

    @property
    def is_busy(self) -> bool:
        return bool(self._running)

    def reserve(self, entry: ClaimedTask) -> bool:
        """Take a place for a try; False: there is none."""
        with self._changed:
            if len(self._places) >= self._limit:
                return False
            self._places.add(entry)
            return True

    def leave(self, entry: ClaimedTask) -> None:
        """Free the place of a try that this object has not adopted."""
        with self._changed:
            self._places.discard(entry)
            self._changed.notify()

    def submit(self, entry: ClaimedTask, attempt: Attempt, awaitable: Awaitable[Any]) -> AsyncTry:
        """Run the coroutine of a try that has begun."""
        begun = AsyncTry(entry, attempt, awaitable, self._at_end)
        loop = event_loop()
        loop.call(begun.start)
        if begun.timeout:
            loop.call(functools.partial(begun.check_timeout, self._at_end))
        return begun

    def adopt(self, begun: AsyncTry, task_list: str = "") -> None:
        """Take a try over from the thread that began it; claim more from the list, if given."""
        with self._changed:
            begun.is_adopted = True
            self._running.add(begun)
            self._places.add(begun.entry)
            if task_list:
                self._lists.setdefault(task_list, 1)
            if begun.is_over:
                self._queue(begun)
            if self._thread.ident is None:
                self._thread.start()
            self._changed.notify()

    # --- in the loop ---

    def _at_end(self, ended: AsyncTry) -> None:
        with self._changed:
            if ended.is_adopted:
                self._queue(ended)

    def _queue(self, ended: AsyncTry) -> None:
        if not ended.is_queued:
            ended.is_queued = True
            self._ended.append(ended)
            self._changed.notify()

    # --- the thread ---

    def _serve(self) -> None:
        while True:
            with self._changed:
                seconds = self._blocked_seconds / 2 if self._running else None
                self._changed.wait_for(self._has_work, seconds)
                if self._is_over:
                    return
                ended, self._ended = self._ended, []
            try:
                if ended:
                    self._start(self._report(ended))
                if self._running:
                    self._probe.check(len(self._running) - 1)
                self._claim()
                if ended:
                    self._flush()
            except Exception as problem:  # it must go on: nobody else reports these tries
                if not self._outages.note(problem):
                    self._log_failure(ended)
                time.sleep(_FAILED_SECONDS)
                with self._changed:
                    self._ended += [begun for begun in ended if begun in self._running]

    def _log_failure(self, ended: Sequence[AsyncTry]) -> None:
        log.exception(
            "async tries of pid %d: a pass failed with %d running and %d ended ones, among these "
            "%s; the next pass repeats it",
            self._identity.pid,
            len(self._running),
            len(ended),
            ", ".join(begun.entry.task.step_path for begun in ended[:_SHOWN]) or "none",
            extra={"action": "async_tries_failed"},
        )

    def _has_work(self) -> bool:
        is_claiming = self._lists and self.room > 0 and not self._is_stopping
        return bool(self._ended or is_claiming or self._is_over)

    def _report(self, ended: Sequence[AsyncTry]) -> list[ClaimedTask]:
        # First: it may raise, and the pass is then repeated with the same tries.
        is_limited = self._engine.limited_claims.apply_to(self._identity)
        ends = ((begun.entry, functools.partial(self._finish, begun)) for begun in ended)
        finished = [entry for entry, finish in ends if self._end(entry, finish)]
        with self._changed:
            self._running.difference_update(ended)
            self._places.difference_update(begun.entry for begun in ended)
            self._changed.notify_all()
        if not finished:
            return []
        policy = None
        if is_limited:
            with self._changed:  # there is room for the tasks of other wake-ups
                self._lists |= {e.task.task_list_name: 1 for e in finished} | self._lists
        elif not self._is_stopping:
            policy = AsyncContinuation(self._identity, self.room, self.is_async)
        return self._client.report(finished, continuation=policy)

    def _end(self, entry: ClaimedTask, finish: Callable[[], bool]) -> bool:
        """Finish a try; return whether there is an outcome to report."""
        try:
            return finish()
        except Exception:  # others have ended too, and nobody else reports them
            log.exception(
                "the outcome of %s of run %s was not counted or shown; it is reported, as a lost "
                "try if it is unknown",
                entry.task.step_path,
                entry.task.workflow_id,
                extra={"action": "outcome_not_counted", "run": entry.task.workflow_id},
            )
            if entry.state == ClaimState.STARTED:
                lost = Lost("its outcome could not be determined")
                return self._client.claimed.finish(entry, lost)
            return entry.state == ClaimState.FINISHED

    def _finish_with(self, entry: ClaimedTask, outcome: Outcome, began: float) -> bool:
        finish = functools.partial(self._client.claimed.finish, entry)
        return self._settle(entry.task, outcome, began, finish)

    def _finish(self, begun: AsyncTry) -> bool:
        """Turn the end of a try into its outcome; False: it has none to report."""
        entry, claimed = begun.entry, self._client.claimed
        if begun.is_dropped or event_loop().is_closing or entry.state != ClaimState.STARTED:
            begun.attempt.drop()
            if begun.has_lost_lease and entry.state == ClaimState.STARTED:
                claimed.close(ClaimEvent.RELEASE, [entry])
            return False
        try:
            outcome = begun.outcome()
        except ChildNotStarted as failure:
            self._client.spool(entry, failure.call, failure)
            return False
        except BaseException as problem:  # `sys.exit` in a coroutine: as in a thread, a loss
            lost = Lost(f"{type(problem).__name__} ended the coroutine that worked on it")
            return claimed.finish(entry, lost)
        return self._finish_with(entry, outcome, begun.began)

    def _claim(self) -> None:
        """Claim tasks of async facets while there is room for them."""
        while not self._is_stopping and (room := self.room) > 0:
            with self._changed:
                if not self._lists:
                    return
                task_list = next(iter(self._lists))  # in turns
                wake = self._lists.pop(task_list)
            names = self._async_names()
            try:
                claim = self._engine.claim_batch(
                    names, task_list, self._identity, most=room, quick=names, after=self._tenant
                )
            except BaseException:
                with self._changed:  # the next pass claims from it
                    self._lists.setdefault(task_list, wake)
                raise
            if claim.tasks:
                self._tenant = claim.tasks[-1].tenant
            if claim.is_more:
                with self._changed:
                    self._lists.setdefault(task_list, 1)
            if claim.is_more and wake > 1:  # this process has no room for them
                self._engine.notifier.notify({task_list: wake - 1})
            elif claim.passed_over:
                self._engine.notifier.notify({task_list: claim.passed_over})
            self._start(self._client.take(claim.tasks))
            if claim.is_limited and not claim.tasks:
                return  # wake-ups may come faster than claims, and ended tries make room

    def _start(self, entries: Sequence[ClaimedTask]) -> None:
        finished: list[ClaimedTask] = []
        for entry in entries:
            began = time.monotonic()
            begun = self._begin(entry)
            if isinstance(begun, AsyncTry):
                self.adopt(begun)
            elif begun is not None:  # it has ended without a coroutine
                finish = functools.partial(self._finish_with, entry, begun, began)
                finished += [entry] if self._end(entry, finish) else []
        if finished:
            self._start(self._client.report(finished))

    # --- cancellation ---

    def cancel_lost(self, lost: Collection[ClaimedTask]) -> None:
        """Cancel the coroutines of these tasks, whose lease is lost."""
        with self._changed:
            running = [begun for begun in self._running if begun.entry in lost]
        for begun in running:
            begun.is_dropped = begun.has_lost_lease = True
            event_loop().call(begun.cancel)

    def stop_claiming(self) -> None:
        self._is_stopping = True

    def finish_running(self, goes_on: Callable[[], bool]) -> None:
        """Wait for the end of all tries: a worker that shuts down warmly finishes its work."""
        self.stop_claiming()
        with self._changed:
            while self._running and goes_on():
                self._changed.wait(_POLL_SECONDS)

    def cancel_running(self) -> None:
        """Cancel all coroutines; their outcomes are not reported, so that they are released."""
        self.stop_claiming()
        with self._changed:
            running = list(self._running)
            for begun in running:
                begun.is_dropped = True
        for begun in running:
            event_loop().call(begun.cancel)
        ends = time.monotonic() + _END_SECONDS
        for begun in running:
            begun.wait(max(0.0, ends - time.monotonic()))

    def end(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(_END_SECONDS)

"""After a commit: wake workers, complete waiting callers, and advance what the commit left open."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from flowengine.dispatch import Notifier
from flowengine.engine.admission import Admissions
from flowengine.engine.alarms import Alarms
from flowengine.engine.committer import Committer, NewFact
from flowengine.engine.failure_log import FailureLog
from flowengine.engine.pollers import DueCounts
from flowengine.engine.singletons import Singletons
from flowengine.engine.staging import CommitEffects, ContinuationPolicy
from flowengine.errors import UnknownRun
from flowengine.evaluator import TaskDefinition
from flowengine.program.limits import clipped
from flowengine.secret_keys import without_secrets
from flowengine.settings import Settings
from flowengine.store import Store
from flowengine.store.failures import is_unavailable
from flowengine.store.protocol import CompletionListener

log = logging.getLogger("flowengine")

#: Seconds between two checks of a waiting caller, growing. Another process that shares a SQLite
#: file cannot notify this one.
_FIRST_POLL, _LAST_POLL = 0.02, 0.25
#: Seconds between two checks while PostgreSQL notifies: a connection may be dead without an error.
_LISTENING_POLL = 10.0


class RunCompletions:
    """Wakes callers that wait for the end of runs: by a notification, by polling without one."""

    def __init__(self, database: Store) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._waiters: defaultdict[str, set[Callable[[], object]]] = defaultdict(set)
        self._listener: CompletionListener | None = None

    def announce(self, run_id: str) -> None:
        with self._lock:
            waiters = list(self._waiters.get(run_id, ()))
        for wake in waiters:
            wake()

    def _wake_all(self) -> None:
        with self._lock:
            waiters = [wake for of_run in self._waiters.values() for wake in of_run]
        for wake in waiters:
            wake()

    @contextmanager
    def _registered(self, run_id: str, wake: Callable[[], object]) -> Iterator[None]:
        with self._lock:
            self._waiters[run_id].add(wake)
            if self._listener is None:
                self._listener = self._database.listen(self.announce, self._wake_all)
        try:
            yield
        finally:
            with self._lock:
                self._waiters[run_id].discard(wake)
                if not self._waiters[run_id]:
                    del self._waiters[run_id]

    def _pauses(self, deadline: float) -> Iterator[float]:
        """Return how long to wait after each check, until the time is over."""
        interval = _FIRST_POLL
        while (left := deadline - time.monotonic()) > 0:
            is_notified = self._listener is not None and self._listener.is_listening
            yield min(left, _LISTENING_POLL if is_notified else interval)
            interval = min(interval * 1.5, _LAST_POLL)

    def wait(self, run_id: str, is_over: Callable[[], bool], timeout: float | None) -> None:
        """Call `is_over` until it returns True, or for the last time when the time is over."""
        woken, pauses = threading.Event(), self._pauses(_deadline(timeout))
        with self._registered(run_id, woken.set):
            while True:
                woken.clear()  # before the check: an end after it sets the event again
                if is_over() or (pause := next(pauses, None)) is None:
                    return
                woken.wait(pause)

    async def await_end(
        self, run_id: str, is_over: Callable[[], bool], timeout: float | None
    ) -> None:
        """Like `wait`, without blocking the event loop."""
        loop = asyncio.get_running_loop()
        woken, pauses = asyncio.Event(), self._pauses(_deadline(timeout))

        def wake() -> None:
            with suppress(RuntimeError):  # the loop was closed in the meantime
                loop.call_soon_threadsafe(woken.set)

        with self._registered(run_id, wake):
            while True:
                woken.clear()
                if await asyncio.to_thread(is_over) or (pause := next(pauses, None)) is None:
                    return
                with suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), pause)

    def close(self) -> None:
        if self._listener is not None:
            self._listener.stop()


def _deadline(timeout: float | None) -> float:
    return math.inf if timeout is None else time.monotonic() + timeout


WakeAgent = Callable[[str, str, ContinuationPolicy | None], list[TaskDefinition]]


class AfterCommit:
    def __init__(
        self,
        committer: Committer,
        notifier: Notifier,
        completions: RunCompletions,
        admissions: Admissions,
        singletons: Singletons,
        alarms: Alarms,
        settings: Settings,
    ) -> None:
        self._committer, self._notifier, self._completions = committer, notifier, completions
        self._admissions, self._singletons = admissions, singletons
        self._alarms, self._failures = alarms, FailureLog(settings)
        self._max_log_length = settings.max_log_length
        self._time_slice = settings.worker_time_slice
        #: Lets an agent take in its messages; set by the layer of agents.
        self.wake_agent: WakeAgent = lambda project, agent, continuation: []

    def advance(
        self,
        run_id: str,
        continuation: ContinuationPolicy | None = None,
        *,
        wait: bool = True,
        served: set[str] | None = None,
        fact: NewFact | None = None,
    ) -> list[TaskDefinition]:
        """Consume a run's inbox, and return the tasks that the worker continues with.

        With `wait=False`, return at once if another transaction has locked the run. `served` are
        tenants whose share was passed on in this pass of recovery: not again for each run. A fact
        is added to the inbox before.
        """
        effects, _ = self._committer.commit_locked(
            run_id, continuation=continuation, fact=fact, wait=wait
        )
        return self.finish([effects], continuation, served=served)

    def finish(
        self,
        commits: Sequence[CommitEffects],
        continuation: ContinuationPolicy | None = None,
        *,
        max_commits: float = math.inf,
        served: set[str] | None = None,
    ) -> list[TaskDefinition]:
        """Handle the effects of commits; return the tasks that the worker continues with.

        After `max_commits` further commits of a run the rest of its inbox is left to a worker, and
        so is the rest of a tenant's run after a time slice: it must not keep this worker from
        others.

        A parent run that waited for an ended run is advanced next, and so is the next run of a
        tenant that waits for its share of evaluation. This is a loop, not a recursion: chains of
        waiting runs may be long. No two runs are locked at once.
        """
        continued: list[TaskDefinition] = []
        ends = time.monotonic() + self._time_slice
        while commits:
            due = DueCounts()
            for effects in commits:
                continued += effects.continued
                due.add(effects.due, effects.notified)
                self.announce(effects)
            if due:
                self._notifier.notify(due)
            drained = [
                self._drain_inbox(effects, continuation, continued, max_commits, ends)
                for effects in commits
            ]
            self._admit(drained)
            for agent in dict.fromkeys(key for each in drained for key in each.agents):
                continued += self.wake_agent(*agent, continuation)
            following = [run_id for each in drained for run_id in self._following(each, served)]
            advanced = [self.consume_inbox(run_id, continuation) for run_id in following]
            commits = [effects for effects in advanced if effects is not None]
        return continued

    def _following(self, effects: CommitEffects, served: set[str] | None) -> list[str]:
        """Return the runs that go on because of a commit of another one."""
        if not (effects.has_ended or effects.told_runs or effects.used_share):
            return []  # like nearly all commits
        following = [effects.parent_run_id, *effects.told_runs]
        if effects.singleton:
            following.append(self._singletons.begin_next(*effects.singleton) or "")
        following.append(self._pass_share_on(effects, served) or "")
        return [run_id for run_id in following if run_id]

    def begin_queued(self, tenant: str, workflow: str, key: str) -> None:
        """Begin the runs of a queue that may begin."""
        while run_id := self._singletons.begin_next(tenant, workflow, key):
            self.advance(run_id)

    def _admit(self, commits: Sequence[CommitEffects]) -> None:
        """Admit new tasks that have limits or rates, and those for which ended ones make room."""
        waiting: dict[str, str] = {}
        freed: set[str] = set()
        for effects in commits:
            waiting |= effects.waiting
            freed |= effects.freed
        if waiting or freed:
            self.admit(waiting, freed)

    def admit(self, waiting: Mapping[str, str], freed: Collection[str] = ()) -> None:
        """Admit tasks of these queues, and of those that wait for these keys; wake workers."""
        due = self._admissions.admit(waiting, freed)
        if due:
            self._notifier.notify(due)

    def consume_inbox(
        self, run_id: str, continuation: ContinuationPolicy | None
    ) -> CommitEffects | None:
        """Consume a run's inbox; log and return None if this run cannot be evaluated."""
        try:
            return self._committer.commit_locked(run_id, continuation=continuation)[0]
        except UnknownRun:
            return None  # it was purged: it had ended
        except Exception as problem:
            if is_unavailable(problem):
                raise
            log.exception(
                "run %s cannot be evaluated; recovery tries again",
                run_id,
                extra={"action": "advance_failed", "run": run_id},
            )
            return None

    def _drain_inbox(
        self,
        effects: CommitEffects,
        continuation: ContinuationPolicy | None,
        continued: list[TaskDefinition],
        max_commits: float,
        ends: float,
    ) -> CommitEffects:
        """Commit until the run's inbox is empty; return the effects of all commits together.

        Groups are dispatched at the end: a foreach is expanded over several commits, and its
        join needs one chord.
        """
        total, commits = effects, 0
        if effects.has_more:
            total = CommitEffects(effects.run_id)
            total.include(effects)
        while effects.has_more:
            if total.used_share and (commits >= max_commits or time.monotonic() > ends):
                break  # its share is passed on, by one message
            if commits >= max_commits and self._notifier.evaluate(effects.run_id):
                break
            commits += 1
            later = self.consume_inbox(effects.run_id, continuation)
            if later is None:
                break
            effects = later
            total.include(effects)
            continued += effects.continued
            if effects.due:
                self._notifier.notify(DueCounts().add(effects.due, effects.notified))
            self.announce(effects)
        if total.groups:
            self._notifier.dispatch_groups(total.run_id, total.groups.values())
        total.has_more = effects.has_more
        return total

    def _pass_share_on(self, effects: CommitEffects, served: set[str] | None) -> str | None:
        """Leave a tenant's share of evaluation to its next run, by a message.

        A transaction that was refused the share left the follow-ups of its run stored, before this
        one released it: so the query sees them. One message, however many runs wait: each that is
        handled sends the next. Returns the run that this process must evaluate itself, because no
        worker receives messages.
        """
        if not effects.used_share or effects.used_share in (served or ()):
            return None
        if served is not None:
            served.add(effects.used_share)
        run_id = self._committer.next_waiting(effects.used_share, after=effects.run_id)
        if run_id is None and effects.has_more:
            run_id = effects.run_id  # of which reports are left
        return None if run_id is None or self._notifier.evaluate(run_id) else run_id

    def announce(self, effects: CommitEffects) -> None:
        """Log what a commit has brought about, and complete the callers that wait for it."""
        for path, params in effects.log_lines:
            line = clipped(f"{path}: {without_secrets(params)}", self._max_log_length)
            log.info("%s", line, extra={"action": "sys.log", "run": effects.run_id})
        for failed in effects.failed_tries:
            self._failures.try_failed(failed)
        if effects.failed is not None:
            self._failures.run_failed(effects.failed)
        if effects.has_ended:
            self._completions.announce(effects.run_id)
        if effects.alarm is not None:
            self._alarms.tell(effects.run_id, *effects.alarm)

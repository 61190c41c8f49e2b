"""The starter: a run and its first steps and tasks are inserted in one commit."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from flowengine.dispatch import Notifier
from flowengine.engine.after_commit import AfterCommit
from flowengine.engine.closed_workflows import refuse_closed
from flowengine.engine.first_commit import origin_of, stage_first_commit
from flowengine.engine.gc_pause import gc_paused
from flowengine.engine.pollers import DueCounts
from flowengine.engine.program_cache import PreparedProgram, ProgramCache
from flowengine.engine.singletons import (
    STARTED,
    SingletonEnded,
    open_run,
    stage_queued,
    start_fact,
)
from flowengine.engine.staging import CommitEffects, ContinuationPolicy
from flowengine.engine.start_request import StartRequest, start_request
from flowengine.engine.used_keys import earlier_run, release_keys
from flowengine.errors import InvalidInputs, TooManyRuns
from flowengine.program import Program
from flowengine.program.nodes import Json
from flowengine.settings import Settings
from flowengine.store import Session, Store
from flowengine.store.caller_transaction import CallerTransaction
from flowengine.store.commits import CommitPlan
from flowengine.store.failures import DatabaseFailure, is_connection_lost
from flowengine.tenants import visible_tenant

log = logging.getLogger("flowengine")

_CALLER_COMMITS = 1  # of up to 1,000 rows; workers expand the rest of a long foreach


class Starter:
    """Starts runs in one database."""

    def __init__(
        self,
        database: Store,
        programs: ProgramCache,
        after_commit: AfterCommit,
        notifier: Notifier,
        settings: Settings,
    ) -> None:
        self._database, self._programs = database, programs
        self._after_commit, self._notifier = after_commit, notifier
        self._settings = settings

    def request(
        self,
        program: Program | Mapping[str, Any] | PreparedProgram,
        workflow: str,
        inputs: Mapping[str, Json],
        **options: Any,
    ) -> StartRequest:
        """Validate a start; raise before anything is written."""
        bound, asked = self._settings.tenant, options.get("tenant", "")
        if bound and isinstance(asked, str):  # another type is refused below
            options["tenant"] = visible_tenant(bound, asked or None)
        prepared = program if isinstance(program, tuple) else self._programs.prepare(program)
        return start_request(prepared, workflow, inputs, self._settings, **options)

    def refuse_failed(self, requests: list[StartRequest]) -> None:
        """Raise EarlierRunFailed if the run of a key has failed."""
        with self._database.read() as session:
            for request in requests:
                earlier_run(session, request)

    def start(self, requests: list[StartRequest]) -> list[str]:
        """Start runs in one commit; return their ids, or for a used key that of the earlier run."""
        try:
            commits = self._insert(requests)
        except DatabaseFailure as problem:
            if not is_connection_lost(problem):
                raise
            commits = self._insert(requests)  # idempotent: an inserted run is found by its id
        return self.finish(requests, commits)

    def finish(self, requests: list[StartRequest], commits: list[CommitEffects]) -> list[str]:
        """Handle the effects of committed starts; return the ids of the runs."""
        for request in requests:
            self._programs.saved(request.digest)
        self._after_commit.finish(commits, max_commits=_CALLER_COMMITS)
        self._begin_queued(requests)
        return [effects.run_id for effects in commits]

    def _begin_queued(self, requests: list[StartRequest]) -> None:
        """Begin runs of workflows that limit their open runs, as long as there are places."""
        for queue in dict.fromkeys(r.queue for r in requests if r.runs is not None):
            self._after_commit.begin_queued(*queue)

    def _insert(self, requests: list[StartRequest]) -> list[CommitEffects]:
        now = self._database.now()
        replaced: dict[str, str] = {}
        with gc_paused():
            # A run that waits is two rows, of one transaction.
            is_limited = any(request.runs is not None for request in requests)
            begin = self._database.write if is_limited else self._database.autocommit
            with begin() as session:
                for request in requests:
                    self.check_open(session, request)
                commits = self._insert_until_written(session, requests, now, replaced)
            if replaced:
                with self._database.write() as session:
                    return self._replace(session, requests, commits, replaced)
        return commits

    def check_open(self, session: Session, request: StartRequest) -> None:
        """Raise TooManyRuns if the workflow has as many open runs as it may have.

        A start whose key was used before starts nothing, and is not refused.
        """
        most = request.max_open or self._settings.max_open_runs
        if not most or request.parent is not None:
            return
        where = (request.tenant, request.workflow)
        if session.runs.count_open(*where, most) < most:
            return
        if request.key is None or session.run_keys.with_key(*where, request.key) is None:
            raise TooManyRuns(request.workflow, most)

    def _insert_until_written(
        self,
        session: Session,
        requests: list[StartRequest],
        now: int,
        replaced: dict[str, str] | None,
    ) -> list[CommitEffects]:
        """Insert runs; again if the run that had the singleton key has just ended."""
        while True:
            with suppress(SingletonEnded):
                return self.insert_with(session, requests, now, replaced)

    def start_queued(self, request: StartRequest) -> str:
        """Insert a run that begins when no other run has its singleton key."""
        with self._database.write() as session:
            run_id = self.insert_queued(session, request)
        self._programs.saved(request.digest)
        return run_id

    def insert_queued(self, session: Session, request: StartRequest) -> str:
        """Insert a run as `start_queued` does, in this transaction."""
        self.check_open(session, request)
        now, rows = session.now(), CommitPlan(rule=session.outbox_rule)
        if request.key is not None and (earlier := earlier_run(session, request)):
            if not earlier.is_replaced:
                return earlier.run_id
            release_keys(session, [earlier.run_id], now)
        self._programs.save(session, request.digest, request.text, now)
        where = request.queue
        # Later than the one before, also within a millisecond: the queue is in this order.
        created = max(now, session.run_keys.last_queued(*where) + 1)
        origin = origin_of(request, now)._replace(created=created)
        stage_queued(request, rows, origin, now)
        if request.run_id not in session.commit(rows):
            return self._earlier_queued(session, request)
        inputs = {"inputs": request.inputs}
        session.inbox.keep_fact(start_fact(request.run_id), request.run_id, STARTED, inputs, now)
        return request.run_id

    def _earlier_queued(self, session: Session, request: StartRequest) -> str:
        """Return the run that another start with the same key has inserted at the same moment."""
        earlier = earlier_run(session, request, may_replace=False) if request.key else None
        if earlier is None and session.runs.get(request.run_id) is None:
            refuse_closed(session, request)
        return earlier.run_id if earlier else request.run_id

    def insert_with(
        self,
        session: Session,
        requests: list[StartRequest],
        now: int,
        replaced: dict[str, str] | None = None,
        continuation: ContinuationPolicy | None = None,
    ) -> list[CommitEffects]:
        """Insert runs, or find those of used keys.

        `replaced` receives the failed runs that are to release their key, by the id of the new
        run. Without it a failed run is returned like any other. With `continuation` this worker
        goes on with their first tasks.
        """
        rows = CommitPlan(rule=session.outbox_rule, notes_of=session.poller_notes)
        effects: dict[str, CommitEffects] = {}
        # Lock order: by key. Two starts of several runs could deadlock.
        for request in sorted(requests, key=lambda request: request.key or ""):
            if request.runs is not None:
                queued = self.insert_queued(session, request)
                effects[request.run_id] = CommitEffects(queued)
                continue
            self._programs.save(session, request.digest, request.text, now)
            effects[request.run_id] = stage_first_commit(session, request, rows, now, continuation)
        written = set() if rows.is_empty else session.commit(rows)
        found = []
        for request in requests:
            if request.run_id in written or request.runs is not None:
                found.append(effects[request.run_id])
            elif request.key is None and request.singleton is None:
                if session.runs.get(request.run_id) is None:
                    refuse_closed(session, request)
                found.append(CommitEffects(request.run_id))  # inserted by an unanswered statement
            else:
                earlier = None
                if request.key is not None:
                    earlier = earlier_run(session, request, may_replace=replaced is not None)
                if earlier is None and request.singleton is not None:
                    try:
                        found.append(open_run(session, request))
                    except SingletonEnded:
                        refuse_closed(session, request)  # or it would be tried for ever
                        raise
                    continue
                if earlier is None:
                    refuse_closed(session, request)
                # Invariant: a key changes hands in one transaction, so some run has it.
                assert earlier is not None
                found.append(CommitEffects(earlier.run_id))
                if replaced is not None and earlier.is_replaced:
                    replaced[request.run_id] = earlier.run_id
        return found

    def _replace(
        self,
        session: Session,
        requests: list[StartRequest],
        commits: list[CommitEffects],
        replaced: dict[str, str],
    ) -> list[CommitEffects]:
        """Start the runs that take the keys of failed ones, in one transaction."""
        release_keys(session, set(replaced.values()), session.now())
        again = [request for request in requests if request.run_id in replaced]
        inserted = iter(self.insert_with(session, again, session.now()))
        return [
            next(inserted) if request.run_id in replaced else effects
            for request, effects in zip(requests, commits, strict=True)
        ]

    def start_within(self, transaction: CallerTransaction, request: StartRequest) -> str:
        """Insert a run in the caller's transaction; workers are woken after its commit.

        Everything else is left to recovery: this process may be inside the caller's cleanup. If
        the transaction is of another database, the run is started after its commit.
        """
        if request.is_queued:
            problem = (
                f"if_running={request.if_running!r} is not possible inside a transaction: another "
                "run may have to be cancelled or begun; use 'reject' or 'return', or start the run "
                "after the commit"
            )
            raise InvalidInputs(request.workflow, [problem])
        executor = transaction.executor
        if executor is None:
            return self._start_after(transaction, request)
        now = self._database.now()
        with self._database.within(executor, transaction.errors) as session:
            replaced: dict[str, str] = {}
            self.check_open(session, request)
            commits = self._insert_until_written(session, [request], now, replaced)
            if replaced:
                commits = self._replace(session, [request], commits, replaced)
        (effects,) = commits
        due = DueCounts().add(effects.due, effects.notified)
        for group in effects.groups.values():
            due.add({group.task_list: len(group.task_ids)})
        if due or effects.waiting:
            transaction.after_commit(lambda: self._wake(due, effects.waiting))
        if effects.failed is not None:
            transaction.after_commit(lambda: self._after_commit.announce(effects))
        if request.runs is not None:
            transaction.after_commit(lambda: self._begin_queued([request]))
        return effects.run_id

    def _start_after(self, transaction: CallerTransaction, request: StartRequest) -> str:
        if request.key is not None:
            problem = (
                "a key cannot be used inside a transaction of another database: its run may "
                "exist, which is known after the commit; start it after the commit"
            )
            raise InvalidInputs(request.workflow, [problem])
        transaction.after_commit(lambda: self.start([request]))
        return request.run_id

    def _wake(self, due: Mapping[str, int], waiting: Mapping[str, str]) -> None:
        try:
            if due:
                self._notifier.notify(due)
            if waiting:
                self._after_commit.admit(waiting)
        except Exception:  # the caller's transaction is committed; recovery notifies again
            log.warning(
                "workers were not woken for new tasks (task lists: %s; limits: %s); recovery wakes "
                "them",
                ", ".join(due) or "none",
                ", ".join(waiting.values()) or "none",
                exc_info=True,
                extra={"action": "wakeup_lost"},
            )

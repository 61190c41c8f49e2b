"""Commit reports together with their consequences.

The optimistic commit takes no lock: it evaluates runs from the run cache, or from rows it reads
now, and writes many runs in one statement. A run is refused if its revision has moved or the
lease of a reported task was lost; the locked commit then handles it under the run's row lock.
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from flowengine.engine import locked_commit, staging
from flowengine.engine.failed_evaluations import FailedEvaluations
from flowengine.engine.failure_log import FailedTry, failed_ahead, failed_tries
from flowengine.engine.gc_pause import gc_paused
from flowengine.engine.intents import apply_intents
from flowengine.engine.program_cache import PreparedProgram, ProgramCache
from flowengine.engine.singletons import check_reopening
from flowengine.engine.staging import (
    AheadRun,
    CachedRun,
    CommitEffects,
    ContinuationPolicy,
    Decision,
)
from flowengine.errors import UnknownRun
from flowengine.evaluator import Missing, RunView, Snapshot
from flowengine.evaluator.states import RunState
from flowengine.evaluator.triggers import Action, Answer, RanAhead, Report
from flowengine.program import Plan
from flowengine.store import Session, Store
from flowengine.store.commits import CommitPlan, CommitRefused

_MAX_CACHED_RUNS = 256
_MAX_CACHED_ROWS = 1_000  # of one run


class NewFact(NamedTuple):
    """A fact that a transaction adds to a run's inbox before it consumes that."""

    kind: str
    payload: dict[str, Any]
    id: str = ""  #: empty: a random one
    key: str | None = None  #: a second fact of the run with the same key changes nothing


class RunCache:
    """The runs that this process advanced last. Shared by all threads.

    A worker that continues with a run has just written its rows, and need not read them again. If
    another process has advanced the run since, its revision differs and the optimistic commit is
    refused. So the cache may be stale, and every entry may be evicted.
    """

    def __init__(self) -> None:
        self._runs: OrderedDict[str, CachedRun] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, run_id: str) -> CachedRun | None:
        """Remove a run and return it: evaluation changes it, so one thread owns it at a time."""
        with self._lock:
            return self._runs.pop(run_id, None)

    def keep(self, run: CachedRun) -> None:
        view = run.head.view
        if view.state in RunState.FINAL:
            return
        rows = run.snapshot.steps
        if len(rows) > _MAX_CACHED_ROWS:
            # Evict ended steps first: they are rarely read again, and can be reloaded.
            for key in [key for key, row in rows.items() if row is None or row.is_final]:
                del rows[key]
            if len(rows) > _MAX_CACHED_ROWS:
                return
        run.snapshot.payloads.clear()
        run.snapshot.at_event.clear()
        with self._lock:
            self._runs[view.id] = run
            while len(self._runs) > _MAX_CACHED_RUNS:
                self._runs.popitem(last=False)


class JoinedCommit(Protocol):
    """The part of agents in a commit that ends runs of their calls."""

    def stage(self, session: Session, view: RunView, ended: CommitEffects) -> bool:
        """Add the consequences of a run's end to the commit; False: the agent gets a message."""

    def committed(self) -> list[CommitEffects]:
        """Return the effects of this part; called after the commit."""


JoinEnds = Callable[[CommitPlan, int, ContinuationPolicy | None], JoinedCommit]


class Committer:
    def __init__(
        self,
        database: Store,
        programs: ProgramCache,
        failures: FailedEvaluations,
        *,
        tenant_shares: int,
    ) -> None:
        self._database, self._programs, self._failures = database, programs, failures
        self._tenant_shares = tenant_shares
        self.cache = RunCache()
        #: Lets agents be part of the commits that end their calls; set by the layer of agents.
        self.join_ends: JoinEnds | None = None

    # --- optimistic ---

    def commit_optimistically(
        self, by_run: Mapping[str, Sequence[Report]], continuation: ContinuationPolicy | None
    ) -> dict[str, CommitEffects]:
        """Commit the reports of several runs in one statement.

        Returns the effects of the runs that were written, and of runs that were started. Runs that
        were refused, or whose reports count down a join, are left to the locked commit.
        """
        try:
            return self._commit_optimistically(by_run, continuation, self.join_ends)
        except CommitRefused:
            return self._commit_optimistically(by_run, continuation, None)

    def _commit_optimistically(
        self,
        by_run: Mapping[str, Sequence[Report]],
        continuation: ContinuationPolicy | None,
        join_ends: JoinEnds | None,
    ) -> dict[str, CommitEffects]:
        by_run = {
            run_id: of_run
            for run_id, of_run in by_run.items()
            if all(report.task.join_id is None for report in of_run)
        }
        now = self._database.now()
        ahead = () if continuation is None else continuation.run_ahead(by_run, now)
        settled: list[tuple[str, str]] = []  # functions that ran ahead, and whose part is written
        try:
            found = self._written(by_run, ahead, continuation, join_ends, now, settled)
        finally:
            if ahead and continuation is not None:
                continuation.settle_ahead(ahead, settled)
        return found

    def _written(
        self,
        by_run: Mapping[str, Sequence[Report]],
        ahead: Sequence[AheadRun],
        continuation: ContinuationPolicy | None,
        join_ends: JoinEnds | None,
        now: int,
        settled: list[tuple[str, str]],
    ) -> dict[str, CommitEffects]:
        rows = CommitPlan(rule=self._database.outbox_rule, notes_of=self._database.poller_notes)
        effects: dict[str, CommitEffects] = {}
        joined: JoinedCommit | None = None
        triggers: dict[str, Sequence[Report | Answer | RanAhead]] = {**by_run}
        for one in ahead:
            if one.trigger is not None:
                triggers[one.run_id] = [*triggers[one.run_id], one.trigger]
        with gc_paused(), self._database.optimistic() as session:
            decisions = self._decide(session, triggers, now)
            for run_id, decision in decisions.items():
                effects[run_id] = staged = staging.stage(decision, rows, now, continuation)
                staged.failed_tries = failed_tries(by_run[run_id])
                for report in by_run[run_id]:
                    rows.add_report(report.task, report.outcome, now)
                    if report.log:
                        rows.add_log(report.log, now)
                    staged.add_freed(report.task.limits)
                rows.gather_payloads(run_id, now)
                if staged.agents and join_ends is not None:
                    joined = joined or join_ends(rows, now, continuation)
                    joined.stage(session, decision.view, staged)
            written = session.commit(rows, guarded=True) if decisions else set()
        found = {run_id: effects[run_id] for run_id in written if run_id in effects}
        for run_id in found:
            self.cache.keep(decisions[run_id].run)
            self._failures.forget(run_id)
            if ran := decisions[run_id].changes.ran_ahead:
                settled += [(run_id, key) for key in ran]
                found[run_id].failed_tries += _failed_ahead(decisions[run_id])
        in_place = [one.run_id for one in ahead if one.trigger is None]
        settled += [(run_id, "") for run_id in in_place if run_id in found]
        if joined is not None and found:
            found |= {of_agents.run_id: of_agents for of_agents in joined.committed()}
        return found

    def commit_answer(self, run_id: str, answer: Answer, tenant: str) -> CommitEffects | None:
        """Commit an answer to a step that waits; None: the locked commit has to decide.

        That is the case for an early answer, a refusal, and a run that another process advances.
        """
        rows = CommitPlan(rule=self._database.outbox_rule, notes_of=self._database.poller_notes)
        with gc_paused(), self._database.optimistic() as session:
            decisions = self._decide(session, {run_id: [answer]}, answer.at)
            decision = decisions.get(run_id)
            if decision is None or decision.changes.refusals or not decision.changes.updated_steps:
                return None
            if tenant and decision.view.tenant != tenant:
                return None
            effects = staging.stage(decision, rows, answer.at)
            if not session.commit(rows, guarded=True):
                return None
        self.cache.keep(decision.run)
        return effects

    def _decide(
        self, session: Session, by_run: Mapping[str, Sequence[Report | Answer | RanAhead]], now: int
    ) -> dict[str, Decision]:
        pending = self._open_runs(session, by_run)
        decisions: dict[str, Decision] = {}
        while pending:
            incomplete: dict[str, tuple[CachedRun, Missing]] = {}
            for run_id, run in pending.items():
                plan = self._programs.plan(session, run.head.view.program_hash)
                decision = staging.decide(plan, run, by_run[run_id], now)
                if isinstance(decision, Missing):
                    incomplete[run_id] = (run, decision)
                elif not decision.is_empty:
                    decisions[run_id] = decision
            if incomplete:
                staging.load_missing(session, incomplete)
            pending = {run_id: run for run_id, (run, _) in incomplete.items()}
        return decisions

    def _open_runs(
        self, session: Session, by_run: Mapping[str, Sequence[Report | Answer | RanAhead]]
    ) -> dict[str, CachedRun]:
        """Take the runs from the cache, load the others, and leave out those that have ended."""
        cached = {run_id: self.cache.take(run_id) for run_id in by_run}
        if not self._database.has_server:
            # Without a network round trip, a check is cheaper than a refusal.
            heads = session.runs.headers([r for r in by_run if cached[r] is not None])
            for run_id, head in heads.items():
                run = cached[run_id]
                if run is not None and run.head.revision != head.revision:
                    cached[run_id] = None
        unknown = {
            run_id: [trigger.step_key for trigger in by_run[run_id]]
            for run_id, run in cached.items()
            if run is None
        }
        loaded = session.runs.headers_and_ancestors(unknown) if unknown else {}
        for run_id, (head, rows) in loaded.items():
            cached[run_id] = CachedRun(head, Snapshot(dict(rows)))
        return {
            run_id: run
            for run_id, run in cached.items()
            if run is not None and run.head.view.state not in RunState.FINAL
        }

    # --- under the run's row lock ---

    def commit_locked(
        self,
        run_id: str,
        ended: Sequence[Report] = (),
        continuation: ContinuationPolicy | None = None,
        fact: NewFact | None = None,
        *,
        wait: bool = True,
        program: PreparedProgram | None = None,
    ) -> tuple[CommitEffects, set[str]]:
        """Record reports or a fact of a run, and consume its whole inbox.

        With `wait=False`, return at once if another transaction has locked the run. Returns the
        effects, and the ids of the tasks whose report was accepted. With `program` the run moves to
        that program, unless the fact is refused.
        """
        with self._failures.watch(run_id), self._database.write() as session:
            head = session.runs.lock(run_id, wait=wait)
            if head is None and not wait:
                return CommitEffects(run_id), set()
            if head is None:
                raise UnknownRun(run_id)
            now = session.now()
            accepted = set(session.reports.record(ended, now)) if ended else set()
            if fact is not None:
                fact_id = fact.id or uuid.uuid4().hex
                session.inbox.add_fact(fact_id, run_id, fact.kind, fact.payload, now, fact.key)
            if ended and not accepted:
                return CommitEffects(run_id), accepted
            run = self.cache.take(run_id)
            if run is None or run.head.revision != head.revision or program is not None:
                run = CachedRun(head)
            run.head = head
            if program is not None:
                head.view.program_hash = program[0]

            def plan() -> Plan:
                return self._programs.plan(session, head.view.program_hash)

            with gc_paused():
                effects = locked_commit.consume_inbox(
                    session, run, plan, now, continuation, tenant_shares=self._tenant_shares
                )
            apply_intents(session, effects, now)
            if program is not None and not effects.refusals:
                session.payloads.save_program(*program[:2], now)
                session.runs.move(run_id, program[0])
        if program is not None:
            return effects, accepted  # not cached: a refused run keeps its program
        self.cache.keep(run)
        self._failures.forget(run_id)
        return effects, accepted

    def preview(self, run_id: str, action: Action) -> str:
        """Return the refusal of an action, or an empty text; nothing is written.

        Raises ActionRefused like `consume_inbox`.
        """
        with self._database.read() as session:
            head = session.runs.headers([run_id]).get(run_id)
            if head is None:
                raise UnknownRun(run_id)
            run, plan = CachedRun(head), self._programs.plan(session, head.view.program_hash)
            decision = staging.decide(plan, run, [action], action.at)
            while isinstance(decision, Missing):
                staging.load_missing(session, {run_id: (run, decision)})
                decision = staging.decide(plan, run, [action], action.at)
            is_final = decision.view.state in RunState.FINAL
            if head.view.state in RunState.FINAL and not is_final:
                check_reopening(session, head.view, action.kind)
        return "".join(refusal.reason for refusal in decision.changes.refusals)

    def next_waiting(self, tenant: str, after: str) -> str | None:
        """Return the next run of a tenant whose follow-ups wait for its share of evaluation."""
        with self._database.read() as session:
            return session.inbox.next_waiting(tenant, after)


def _failed_ahead(decision: Decision) -> list[FailedTry]:
    """Return the ends of functions that ran ahead, and that this decision has taken in."""
    steps, ran = decision.run.snapshot.steps, set(decision.changes.ran_ahead)
    return [
        failed
        for trigger in decision.triggers
        if isinstance(trigger, RanAhead) and trigger.step_key in ran
        if (function := steps.get(trigger.step_key)) is not None
        for failed in failed_ahead(decision.view.id, function, trigger)
    ]

"""Settle reports: end tries, decide what follows, and commit both together.

The quick way needs no lock: the runs are evaluated from what this process knows of them, or
reads now, and all of it is written in one guarded commit, many runs at once. A run whose
guard does not hold is settled the slow way, under its lock: somebody else advanced it, or
one of the tries was no longer ours.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowengine.engine import locked_commit, staging
from flowengine.engine.gc_pause import gc_paused
from flowengine.engine.program_cache import Programs
from flowengine.engine.run_cache import RunCache
from flowengine.engine.staging import CachedRun, Commit, ContinuationPolicy, Decision
from flowengine.errors import UnknownRun
from flowengine.evaluator import Missing, Snapshot, TaskDefinition
from flowengine.evaluator.states import RunState
from flowengine.evaluator.triggers import HandedOver, TryEnded, TryOutcome
from flowengine.program import Plan
from flowengine.store import Database, commit_writer, reports, runs
from flowengine.store.commits import CommitRows
from flowengine.store.executors import Executor
from flowengine.store.reports import Ended


@dataclass(frozen=True, slots=True)
class Report:
    """How a claimed task ended, as the worker that holds it says."""

    task: TaskDefinition
    outcome: TryOutcome | HandedOver

    @property
    def ended(self) -> Ended:
        return Ended(self.task.uuid, self.task.lease, self.outcome)

    @property
    def trigger(self) -> TryEnded:
        task = self.task
        assert not isinstance(self.outcome, HandedOver)
        return TryEnded(task.step_id, task.step_key, task.try_number, task.losses, self.outcome)


class Committer:
    """Settles reports of one database."""

    def __init__(self, database: Database, programs: Programs) -> None:
        self._database, self._programs = database, programs
        self.memory = RunCache()

    # --- without a lock ---

    def at_once(
        self, of_runs: Mapping[str, Sequence[Report]], continuation: ContinuationPolicy | None
    ) -> dict[str, Commit]:
        """Settle the reports of several runs in one guarded commit.

        Returns the commits of those runs for which the guard held; of the others nothing is
        written.
        """
        # A failure in a group is counted down in its join too, which the lock's way does.
        of_runs = {
            run_id: found
            for run_id, found in of_runs.items()
            if all(report.task.join_id is None for report in found)
        }
        now = self._database.now()
        rows = CommitRows()
        commits: dict[str, Commit] = {}
        with gc_paused(), self._database.direct() as executor:
            decided = self._decide(executor, of_runs, now)
            for run_id, decision in decided.items():
                commits[run_id] = staging.put(decision, rows, now, continuation)
                rows.runs[-1]["reports"] = len(of_runs[run_id])
                for report in of_runs[run_id]:
                    rows.add_report(report.task, report.outcome, now)
                rows.gather_payloads(run_id, now)
            written = commit_writer.write(executor, rows, guarded=True) if decided else set()
        for run_id in written:
            self.memory.keep(decided[run_id].known)
        return {run_id: commits[run_id] for run_id in written}

    def _decide(
        self, executor: Executor, of_runs: Mapping[str, Sequence[Report]], now: int
    ) -> dict[str, Decision]:
        known = {run_id: self.memory.take(run_id) for run_id in of_runs}
        if executor.is_sqlite:  # a look costs no round trip: what is out of date is found out
            heads = runs.heads(executor, [r for r in of_runs if known[r] is not None])
            for run_id, head in heads.items():
                found = known[run_id]
                if found is not None and found.head.revision != head.revision:
                    known[run_id] = None
        unknown = {
            run_id: [report.task.step_key for report in of_runs[run_id]]
            for run_id, found in known.items()
            if found is None
        }
        around = runs.around(executor, unknown) if unknown else {}
        for run_id, (head, rows) in around.items():
            known[run_id] = CachedRun(head, Snapshot(dict(rows)))
        open_runs = {
            run_id: found
            for run_id, found in known.items()
            if found is not None and found.head.view.state not in RunState.FINAL
        }
        decided: dict[str, Decision] = {}
        while open_runs:
            lacking: dict[str, tuple[CachedRun, Missing]] = {}
            for run_id, run in open_runs.items():
                plan = self._programs.plan(executor, run.head.view.program_hash)
                triggers = [report.trigger for report in of_runs[run_id]]
                decision = staging.decide(plan, run, triggers, now)
                if isinstance(decision, Missing):
                    lacking[run_id] = (run, decision)
                elif not decision.is_empty:
                    decided[run_id] = decision
            if lacking:
                staging.supply(executor, lacking)
            open_runs = {run_id: run for run_id, (run, _) in lacking.items()}
        return decided

    # --- under the lock of one run ---

    def under_lock(
        self,
        run_id: str,
        ended: Sequence[Ended] = (),
        continuation: ContinuationPolicy | None = None,
        fact: tuple[str, dict[str, Any]] | None = None,
        *,
        wait: bool = True,
    ) -> tuple[Commit, set[str]]:
        """Record how tries of a run ended, or a fact of it, and take in all that waits.

        Who is not `patient` does nothing if somebody else has locked the run. Returns the commit,
        and the tasks whose report was accepted.
        """
        with self._database.write() as connection:
            executor = self._database.inside(connection)
            head = runs.lock(executor, run_id, wait=wait)
            if head is None and not wait:
                return Commit(run_id), set()
            if head is None:
                raise UnknownRun(run_id)
            now = self._database.now()
            accepted = set(reports.record(executor, ended, now)) if ended else set()
            if fact is not None:
                runs.add_fact(connection, uuid.uuid4().hex, run_id, *fact, now)
            if ended and not accepted:
                return Commit(run_id), accepted
            known = self.memory.take(run_id)
            if known is None or known.head.revision != head.revision:
                known = CachedRun(head)
            known.head = head

            def plan() -> Plan:
                return self._programs.plan(executor, head.view.program_hash)

            with gc_paused():
                commit = locked_commit.consume_inbox(executor, known, plan, now, continuation)
            if reports.cancel_open(connection, run_id, commit.canceled, now):
                commit.has_more = True
        self.memory.keep(known)
        return commit, accepted

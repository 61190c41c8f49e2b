"""Take in what waits for a run, under its lock.

Everything is read after the lock was taken: a report that is committed while we wait for it is
seen once we have it, and whoever comes to the lock after us sees what we wrote, so no wake-up
is lost.

What waits is decided in portions, all of them in the transaction that holds the lock. A
portion is written while the next one is decided: to decide takes this process about as long as
to write takes the database.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flowengine.engine.staging import (
    CachedRun,
    Commit,
    ContinuationPolicy,
    Decision,
    decide,
    put,
    supply,
)
from flowengine.evaluator import Missing, Step, lacking
from flowengine.evaluator.states import RunState
from flowengine.evaluator.triggers import StepContinue, StepFail, Trigger, Unfold
from flowengine.program import Plan
from flowengine.store import codec, commit_writer, reports, runs
from flowengine.store.commits import CommitRows
from flowengine.store.executors import Executor

_FACTS: dict[str, Callable[[dict[str, Any]], Trigger]] = {
    "StepContinue": lambda fact: StepContinue(fact["step_id"], fact["step_key"], fact["result"]),
    "StepFail": lambda fact: StepFail(fact["step_id"], fact["step_key"], fact["error"]),
    "Unfold": lambda fact: Unfold(fact["step_key"]),
    "ChildCompleted": lambda fact: StepContinue(
        fact["step_id"], fact["step_key"], codec.attributes(fact["outputs"])
    ),
    "ChildFailed": lambda fact: StepFail(fact["step_id"], fact["step_key"], fact["error"]),
}
_PORTION = 100  # happenings that are decided together
_MOST = 1_000  # happenings, or new rows, of one transaction: others wait for the run's lock


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Something that happened to the run, and the row that says so."""

    trigger: Trigger
    task_id: str = ""
    fact_id: str = ""


def consume_inbox(
    executor: Executor,
    known: CachedRun,
    plan: Callable[[], Plan],
    now: int,
    continuation: ContinuationPolicy | None = None,
) -> Commit:
    """Take in the facts and reports that wait, and what the evaluator leaves for later.

    The caller has locked the run, and commits.
    """
    run_id = known.head.view.id
    reported = reports.reported(executor, run_id, _MOST)
    facts = runs.waiting_facts(executor, run_id, _MOST)
    # Where as many were found as were asked for there may be more.
    whole = Commit(run_id, has_more=_MOST in (len(reported), len(facts)))
    waiting = deque(_Waiting(report.ended, task_id=report.task_id) for report in reported)
    waiting += [_Waiting(_FACTS[kind](told), fact_id=fact_id) for fact_id, kind, told in facts]
    if not waiting:
        return whole
    read: dict[str, Step] = {report.step.key: report.step for report in reported}
    known.snapshot.steps |= read
    is_open = known.head.view.state not in RunState.FINAL
    turn = _Turn(executor, known, plan(), now) if is_open else None
    if turn is not None:
        turn.prefetch([found.trigger for found in waiting])
    room = _MOST
    with commit_writer.streamed(executor) as write:
        while waiting:
            portion = [waiting.popleft() for _ in range(min(_PORTION, len(waiting)))]
            rows = CommitRows()
            if turn is not None:
                decision = turn.decide([found.trigger for found in portion])
                room -= max(len(portion), len(decision.changes.created_steps))
                if not decision.is_empty:
                    whole.include(put(decision, rows, now, continuation, goes_on=room > 0))
                if room > 0:
                    left = decision.changes.follow_ups
                    waiting += [_Waiting(_FACTS[later.kind](later.payload)) for later in left]
                if whole.has_ended:
                    turn = None  # what else waits comes too late
            rows.consume_inbox(
                run_id,
                [found.task_id for found in portion if found.task_id],
                [found.fact_id for found in portion if found.fact_id],
            )
            if rows.runs or rows.taken_tasks or rows.taken_facts:
                write(rows)
    return whole


@dataclass(frozen=True, slots=True)
class _Turn:
    """A run that is locked, and what it is evaluated with."""

    executor: Executor
    known: CachedRun
    plan: Plan
    now: int

    def prefetch(self, triggers: Sequence[Trigger]) -> None:
        """Read what all these happenings concern at once, before anything is being written."""
        view, snapshot = self.known.head.view, self.known.snapshot
        while missing := lacking(self.plan, view, snapshot, triggers, self.now):
            supply(self.executor, {view.id: (self.known, missing)})

    def decide(self, triggers: Sequence[Trigger]) -> Decision:
        decision = decide(self.plan, self.known, triggers, self.now, prefetched=True)
        while isinstance(decision, Missing):
            supply(self.executor, {self.known.head.view.id: (self.known, decision)})
            decision = decide(self.plan, self.known, triggers, self.now)
        return decision

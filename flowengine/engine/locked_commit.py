"""Consume a run's inbox under its row lock.

Everything is read after the lock was taken: a report committed while this transaction waited for
the lock is seen, and a later transaction sees the rows written here. So no report is missed.

The inbox is evaluated in portions, all in the transaction that holds the lock. One portion is
written while the next is evaluated: both take about the same time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from flowengine.engine import staging
from flowengine.engine.failure_log import failed_tries
from flowengine.engine.singletons import check_reopening
from flowengine.engine.staging import CachedRun, CommitEffects, ContinuationPolicy, Decision
from flowengine.evaluator import Missing, Step, cancellation, lacking
from flowengine.evaluator.records import FollowUp
from flowengine.evaluator.states import RunState
from flowengine.evaluator.triggers import (
    Action,
    Answer,
    CancelChildren,
    CancelSteps,
    Expand,
    Started,
    StepContinue,
    StepFail,
    TimerFired,
    Trigger,
)
from flowengine.program import Plan
from flowengine.program.limits import DEFAULT_LIMITS, Limits
from flowengine.store import Session, codec
from flowengine.store.commits import CommitPlan

_FACTS: dict[str, Callable[[dict[str, Any]], Trigger]] = {
    "Started": lambda fact: Started(fact["inputs"]),  # of a run that was queued
    "StepContinue": lambda fact: StepContinue(fact["step_id"], fact["step_key"], fact["result"]),
    "StepFail": lambda fact: StepFail(fact["step_id"], fact["step_key"], fact["error"]),
    "TimerFired": lambda fact: TimerFired(fact["step_id"], fact["step_key"], fact.get("kind", "")),
    "Answer": lambda fact: Answer(
        fact["id"], fact["name"], fact["value"], fact["actor"], fact["at"], fact.get("wait")
    ),
    "Action": lambda fact: Action(**fact),
    cancellation.OPEN_STEPS: lambda fact: CancelSteps(fact["after"]),
    cancellation.CHILDREN: lambda fact: CancelChildren(**fact),
    "Expand": lambda fact: Expand(fact["step_key"]),  # stored runs have this kind
    "ChildCompleted": lambda fact: StepContinue(
        fact["step_id"], fact["step_key"], codec.attributes(fact["outputs"])
    ),
    "ChildFailed": lambda fact: StepFail(fact["step_id"], fact["step_key"], fact["error"]),
}
#: A trigger, with the id of the task or the fact that recorded it.
_InboxEntry = tuple[Trigger, str, str]
_FOLLOW_UP = "Expand"
_PORTION = 100  # triggers that are evaluated together
_MAX_TRIGGERS = 1_000  # triggers, or new rows, per transaction: others wait for the run's lock


def consume_inbox(
    session: Session,
    run: CachedRun,
    plan: Callable[[], Plan],
    now: int,
    continuation: ContinuationPolicy | None = None,
    *,
    tenant_shares: int,
) -> CommitEffects:
    """Evaluate the run's unconsumed reports and facts, and the follow-ups of that evaluation.

    The caller has locked the run, and commits. At most `tenant_shares` transactions at once
    consume stored follow-ups of a tenant's runs; others leave them stored. Raises ActionRefused
    if an action would reopen a run whose singleton key another open run has.
    """
    run_id, tenant = run.head.view.id, run.head.view.tenant
    reported = session.inbox.reports(run_id, _MAX_TRIGGERS)
    facts = session.inbox.facts(run_id, _MAX_TRIGGERS)
    effects = CommitEffects(run_id)
    if tenant and any(kind == _FOLLOW_UP for _, kind, _ in facts):
        if session.inbox.take_share(tenant, tenant_shares):
            effects.used_share = tenant
        else:
            # Read again: answers may be behind a full page of follow-ups.
            facts = session.inbox.facts(run_id, _MAX_TRIGGERS, without=_FOLLOW_UP)
    # A full page means that the inbox may hold more.
    effects.has_more = _MAX_TRIGGERS in (len(reported), len(facts))
    for report, _ in reported:
        effects.add_freed(report.task.limits)
    effects.failed_tries = failed_tries(report for report, _ in reported)
    inbox: deque[_InboxEntry] = deque((report, report.task.uuid, "") for report, _ in reported)
    inbox += [(_FACTS[kind](body), "", fact_id) for fact_id, kind, body in facts]
    if not inbox:
        return effects
    loaded: dict[str, Step] = {step.key: step for _, step in reported if step is not None}
    run.snapshot.steps |= loaded
    # Of a run that has ended only actions are evaluated: a retry may open it again.
    is_open = run.head.view.state not in RunState.FINAL or _has_actions(inbox)
    evaluation = _Evaluation(session, run, plan(), now) if is_open else None
    if evaluation is not None:
        evaluation.prefetch([trigger for trigger, _, _ in inbox])
    room = _MAX_TRIGGERS
    budget = _Budget(evaluation.plan.limits if evaluation else DEFAULT_LIMITS)
    with session.stream_commits() as write:
        while inbox:
            portion = [inbox.popleft() for _ in range(min(_PORTION, len(inbox)))]
            rows = CommitPlan(rule=session.outbox_rule, notes_of=session.poller_notes)
            if evaluation is not None:
                decision = evaluation.decide([trigger for trigger, _, _ in portion])
                follow_ups = decision.changes.follow_ups
                changes = decision.changes
                room -= max(len(portion), len(changes.created_steps), len(changes.canceled_steps))
                if not decision.is_empty:
                    effects.include(
                        staging.stage(decision, rows, now, continuation, keeps_follow_ups=room > 0)
                    )
                if room > 0:
                    inbox += [
                        (_FACTS[later.kind](later.payload), "", "")
                        for later in follow_ups
                        if later.kind not in staging.DEFERRED
                    ]
                if decision.view.state in RunState.FINAL and not _has_actions(inbox):
                    evaluation = None  # the rest of the inbox came too late, and is only consumed
                elif budget.is_spent_by(decision) and inbox:
                    effects.has_more = True
                    first = len(follow_ups)  # those before it have been added
                    left = _unstored(inbox)
                    rows.add_follow_ups(run_id, run.head.revision, left, now, first=first)
                    inbox.clear()
            rows.consume_inbox(
                run_id,
                [task_id for _, task_id, _ in portion if task_id],
                [fact_id for _, _, fact_id in portion if fact_id],
            )
            if not rows.is_empty:
                write(rows)
    return effects


def _has_actions(inbox: Iterable[_InboxEntry]) -> bool:
    return any(isinstance(trigger, Action | Answer | CancelChildren) for trigger, _, _ in inbox)


def _unstored(inbox: Iterable[_InboxEntry]) -> list[FollowUp]:
    """Return the follow-ups of this transaction; all other entries stay in the stored inbox."""
    found = []
    for trigger, _, fact_id in inbox:
        if isinstance(trigger, Expand) and not fact_id:
            found.append(FollowUp(_FOLLOW_UP, {"step_key": trigger.step_key}))
        elif isinstance(trigger, CancelSteps) and not fact_id:
            found.append(FollowUp(cancellation.OPEN_STEPS, {"after": trigger.after}))
    return found


class _Budget:
    """The size of a transaction: a hostile program must not make one that fills the memory."""

    def __init__(self, limits: Limits) -> None:
        self._steps, self._bytes = limits.max_commit_steps, limits.max_commit_bytes

    def is_spent_by(self, decision: Decision) -> bool:
        self._steps -= len(decision.changes.created_steps)
        self._bytes -= decision.changes.computed_bytes
        return self._steps <= 0 or self._bytes <= 0


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """A locked run, and the plan and time it is evaluated with."""

    session: Session
    run: CachedRun
    plan: Plan
    now: int

    def prefetch(self, triggers: Sequence[Trigger]) -> None:
        """Load the read set of all triggers at once, before anything is written."""
        view, snapshot = self.run.head.view, self.run.snapshot
        while missing := lacking(self.plan, view, snapshot, triggers, self.now):
            staging.load_missing(self.session, {view.id: (self.run, missing)})

    def decide(self, triggers: Sequence[Trigger]) -> Decision:
        decision = staging.decide(self.plan, self.run, triggers, self.now, prefetched=True)
        while isinstance(decision, Missing):
            staging.load_missing(self.session, {self.run.head.view.id: (self.run, decision)})
            decision = staging.decide(self.plan, self.run, triggers, self.now)
        self._check_reopening(decision)
        self.run.snapshot.outline, self.run.snapshot.results = None, {}  # of before this decision
        return decision

    def _check_reopening(self, decision: Decision) -> None:
        before = self.run.head.view
        if before.state in RunState.FINAL and decision.view.state not in RunState.FINAL:
            kinds = [trigger.kind for trigger in decision.triggers if isinstance(trigger, Action)]
            check_reopening(self.session, before, kinds[0])

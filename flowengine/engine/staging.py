"""Staging: let the evaluator decide, and put its decision into a commit.

Two paths lead here. A locked commit reads all rows after taking the run's row lock
(`locked_commit`). An optimistic commit uses the run cache without a lock, and is refused if the
run's revision has moved since (`committer`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flowengine.dispatch.notifier import Group
from flowengine.engine import history
from flowengine.engine.failed_evaluations import UNEVALUATED
from flowengine.engine.failure_log import FailedRun, FailedTry, failed_run
from flowengine.evaluator import (
    IterationChanges,
    Missing,
    Snapshot,
    cancellation,
    evaluate,
    working_set,
)
from flowengine.evaluator.admission import read_keys
from flowengine.evaluator.records import (
    ChildCancellation,
    PayloadRef,
    RunView,
    TaskDefinition,
    TaskHold,
    id_within,
)
from flowengine.evaluator.states import ObjectType, RunState, TaskState
from flowengine.evaluator.triggers import RanAhead, Report, Trigger
from flowengine.evaluator.waits import timer_id
from flowengine.program import Plan
from flowengine.store import Session
from flowengine.store.agent_calls import AgentCall
from flowengine.store.claims import WorkerIdentity, claimed_by
from flowengine.store.commits import CommitPlan, RunHeader

#: Tasks of one commit that feed the same join share a join counter from this number on.
MIN_GROUP_SIZE = 8

#: Follow-ups that are evaluated in a later transaction: it sees child runs that were started before
#: the commit of this one.
DEFERRED = (cancellation.CHILDREN,)

#: By join and task list: a message for one list does not reach the workers of another.
Groups = dict[tuple[str, str], Group]
AgentKey = tuple[str, str]  #: the project and the id of an agent


class AheadRun(Protocol):
    """A durable function that was told of ends before they are committed."""

    run_id: str
    #: None: its next calls are made in place, by a regular activation.
    trigger: RanAhead | None


class ContinuationPolicy(Protocol):
    """Chooses the new tasks that the reporting worker runs next, without wake-up or claim."""

    identity: WorkerIdentity

    def choose(self, due: Sequence[TaskDefinition]) -> Collection[str]:
        """Return the ids of the tasks that this worker continues with."""

    def run_ahead(self, by_run: Mapping[str, Sequence[Report]], now: int) -> Sequence[AheadRun]:
        """Run the durable functions whose calls these reports end, if they are kept here.

        `now` is the time at which the calls have ended.
        """

    def settle_ahead(self, ahead: Sequence[AheadRun], written: Collection[tuple[str, str]]) -> None:
        """Keep the coroutines whose commit was written, by run and key, and drop the others."""


class CommitEffects:
    """The consequences of one commit of a run that are handled after it."""

    # Not a dataclass: its default factories take three times as long, and each step has effects.
    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.due: dict[str, int] = {}  #: new tasks by task list
        self.notified: dict[str, int] = {}  #: those of which the commit notifies pollers
        self.groups: Groups = {}  #: new tasks that feed one join
        self.continued: list[TaskDefinition] = []  #: claimed by this commit
        self.has_ended = False
        self.parent_run_id = ""  #: waits for this run, which has ended
        self.has_more = False  #: the run's inbox still holds follow-ups or reports
        self.used_share = ""  #: the tenant whose share of evaluation this commit has used
        self.log_lines: list[tuple[str, dict[str, Any]]] = []  #: of sys.log
        self.canceled: list[str] = []  #: steps whose open tasks are to be canceled
        self.task_hold: TaskHold | None = None  #: the last decision about the run's unclaimed tasks
        #: That child runs are to get.
        self.child_cancellations: list[ChildCancellation] = []
        self.told_runs: list[str] = []  #: other runs that have got a fact: they go on
        self.refusals: dict[str, str] = {}  #: by the id of the answer: the reason
        #: Tenant, workflow and key of the ended run.
        self.singleton: tuple[str, str, str] | None = None
        self.agents: list[AgentKey] = []  #: that have got a message
        self.waiting: dict[str, str] = {}  #: queues of new tasks, and their limits
        self.freed: set[str] = set()  #: keys of limits and rates of ended tasks
        self.failed: FailedRun | None = None  #: the run has ended so
        self.failed_tries: list[FailedTry] = []  #: that no worker has logged
        self.alarm: tuple[str, str] | None = None  #: that the evaluator has set, with the workflow
        self.started: CachedRun | None = None  #: the new run, as it is after its first commit

    def include(self, later: CommitEffects) -> None:
        """Add the effects of a later commit of the same run."""
        for task_list, number in later.due.items():
            self.due[task_list] = self.due.get(task_list, 0) + number
        for task_list, number in later.notified.items():
            self.notified[task_list] = self.notified.get(task_list, 0) + number
        for key, group in later.groups.items():
            merged = self.groups.setdefault(key, Group(group.task_list, []))
            merged.task_ids.extend(group.task_ids)
        self.continued += later.continued
        self.has_ended = self.has_ended or later.has_ended
        self.parent_run_id = self.parent_run_id or later.parent_run_id
        self.has_more = self.has_more or later.has_more
        self.used_share = self.used_share or later.used_share
        self.log_lines += later.log_lines
        self.canceled += later.canceled
        self.task_hold = later.task_hold or self.task_hold
        self.child_cancellations += later.child_cancellations
        self.told_runs += later.told_runs
        self.refusals |= later.refusals
        self.singleton = self.singleton or later.singleton
        self.agents += later.agents
        self.waiting |= later.waiting
        self.freed |= later.freed
        self.failed = later.failed or self.failed
        self.failed_tries += later.failed_tries
        self.alarm = later.alarm or self.alarm

    def add_freed(self, limits: str | None) -> None:
        """Note that a task with these keys has ended."""
        if limits:
            self.freed |= limit_names(limits)


def limit_names(limits: str) -> set[str]:
    """Return the names of a task's keys of limits and rates: its end makes room for others."""
    return {key.name for key in read_keys(limits)}


@dataclass
class CachedRun:
    """A run's header and some of its rows, as last read or written by this process."""

    head: RunHeader
    snapshot: Snapshot = field(default_factory=Snapshot)


@dataclass
class Decision:
    """The evaluator's decision about a run; nothing of it is written yet."""

    run: CachedRun
    view: RunView
    changes: IterationChanges
    triggers: Sequence[Trigger]

    @property
    def is_empty(self) -> bool:
        before = self.run.head.view
        is_same = (self.view.alarm, self.view.state) == (before.alarm, before.state)
        return self.changes.is_empty and is_same


def decide(
    plan: Plan, run: CachedRun, triggers: Sequence[Trigger], now: int, *, prefetched: bool = False
) -> Decision | Missing:
    """Evaluate the triggers, or name the rows that the evaluator needs and does not have."""
    view = run.head.view.copied()
    changes = evaluate(plan, view, run.snapshot, triggers, now, prefetched=prefetched)
    if isinstance(changes, Missing):
        return changes
    if view.alarm is not None and view.alarm.startswith(UNEVALUATED):
        view.alarm = None
    return Decision(run, view, changes, triggers)


def load_missing(session: Session, wanted: Mapping[str, tuple[CachedRun, Missing]]) -> None:
    """Load the rows that evaluations of several runs miss, each kind in one query."""
    keys = {run_id: missing.steps for run_id, (_, missing) in wanted.items() if missing.steps}
    rows = session.steps.load(keys) if keys else {}
    hashes = {digest for _, missing in wanted.values() for digest in missing.payloads}
    bodies = session.payloads.load(hashes) if hashes else {}
    cached = {key for _, missing in wanted.values() for key in missing.cached}
    results = session.result_cache.newest(cached) if cached else {}
    for run_id, (run, missing) in wanted.items():
        loaded = rows.get(run_id, {})
        run.snapshot.steps |= {key: loaded.get(key) for key in missing.steps}
        run.snapshot.payloads |= {digest: bodies[digest] for digest in missing.payloads}
        run.snapshot.cached |= {key: results[key] for key in missing.cached}
        if missing.outline:
            run.snapshot.outline = session.steps.outline(run_id)
        if missing.results:
            run.snapshot.results |= session.tasks.event_results(run_id, missing.results)
        for key in missing.last_calls:
            function = run.snapshot.steps[key]
            assert function is not None
            last = session.calls.last_recorded(run_id, function.path)
            run.snapshot.last_calls[key] = last
        for after in missing.pages:
            steps = session.steps.at_event(run_id, after, working_set.PAGE)
            run.snapshot.at_event[after] = [step.key for step in steps]
            run.snapshot.steps |= {step.key: step for step in steps}


def stage(
    decision: Decision,
    rows: CommitPlan,
    now: int,
    continuation: ContinuationPolicy | None = None,
    *,
    keeps_follow_ups: bool = False,
) -> CommitEffects:
    """Add a decision to a commit, and bring the cached run to the state after that commit.

    With `keeps_follow_ups` the caller evaluates the decision's follow-ups itself in the same
    transaction; otherwise they are written as facts.
    """
    run, view, changes = decision.run, decision.view, decision.changes
    head, created = run.head, changes.created_tasks
    effects = CommitEffects(view.id)
    effects.canceled = changes.canceled_steps
    effects.task_hold = changes.task_hold
    effects.child_cancellations = changes.child_cancellations
    if changes.refusals:
        effects.refusals = {refusal.answer_id: refusal.reason for refusal in changes.refusals}
    before = head.view
    if before.state in RunState.FINAL and (
        (view.state, view.generation) == (before.state, before.generation)
    ):
        return effects  # a run that has ended is not written again
    written = rows.encoder.written
    rows.add_steps(changes.created_steps, changes.updated_steps, run.snapshot.steps)
    paths = sum([len(step.path) for step in changes.created_steps])
    view.value_bytes += rows.encoder.written - written + paths
    if created:
        due = [task for task in created if task.due <= now and task.state == TaskState.PENDING]
        if continuation is not None:
            effects.continued = _continue_with(continuation, due)
        if len(created) >= MIN_GROUP_SIZE:
            effects.groups = _group(view, [task for task in created if task.lease == 0])
        for task in due:
            if task.lease == 0 and task.join_id is None:
                effects.due[task.task_list_name] = effects.due.get(task.task_list_name, 0) + 1
        effects.notified = rows.note_due(effects.due)
        rows.add_events(changes.created_events, now)
        if effects.groups:
            counts: Counter[str] = Counter()
            for (join_id, _), group in effects.groups.items():
                counts[join_id] += len(group.task_ids)
            rows.add_joins(view.id, counts, now)
            _leave_unclaimable(effects.groups, created)
        rows.add_tasks(created, head.task_count)
        effects.waiting = {
            task.queue: task.limits or ""
            for task in created
            if task.queue is not None and task.state == TaskState.WAITING
        }
    if changes.reused_results:
        rows.add_reused(view.id, changes.reused_results, now)
    if changes.cached_results:
        rows.keep_results(view.id, changes.cached_results.values())
    run.snapshot.cached.clear()  # of this moment
    run.snapshot.last_calls.clear()
    if changes.follow_ups:
        left = [f for f in changes.follow_ups if not keeps_follow_ups or f.kind in DEFERRED]
        if left:
            rows.add_follow_ups(view.id, head.revision + 1, left, now)
            effects.has_more = True
    if changes.created_timers:
        rows.add_timers(changes.created_timers, now)
    if changes.ended_waits:
        rows.end_timers(view.id, map(timer_id, changes.ended_waits), now)
    if changes.ended_timers:
        rows.end_timers(view.id, changes.ended_timers, now)
    entry = history.summary(
        decision.triggers, changes, run.snapshot.steps, view.state, view.generation
    )
    run.head = rows.save_run(head, view, entry, now, tasks=len(created))
    # A fork and a cached result have references to values of another run.
    is_taken = head.revision == 0 or bool(changes.reused_results)
    rows.gather_payloads(view.id, now, to_run=view.id if is_taken else "")
    if changes.superseded:
        rows.supersede_steps(view.id, changes.superseded.values())
        run.snapshot.steps |= dict.fromkeys(changes.superseded)
    for step in (*changes.created_steps, *changes.updated_steps):
        run.snapshot.steps[step.key] = step
        if step.object_type == ObjectType.LOG and step.is_final:
            effects.log_lines.append((step.path, step.params))
    effects.has_ended = view.state in RunState.FINAL  # anew: a final run is written by a retry
    if effects.has_ended:
        effects.failed = failed_run(view)
    elif view.alarm is not None and view.alarm != before.alarm:
        effects.alarm = (view.workflow, view.alarm)
    if rows.rule is not None and history.has_outcome(entry, rows.rule.events, effects.has_ended):
        rows.add_outcomes(view.id, run.head.revision, now)
    if effects.has_ended and view.singleton is not None:
        effects.singleton = (view.tenant, view.workflow, view.singleton)
    if effects.has_ended and view.waiter is not None:
        rows.add_parent_fact(view, view.waiter, now)
        rows.gather_payloads(view.id, now, to_run=view.waiter.run_id)
        effects.parent_run_id = view.waiter.run_id
    if effects.has_ended and view.agent_call is not None:
        rows.add_agent_report(view, now)
        effects.agents.append((view.tenant, AgentCall.read(view.agent_call).agent_id))
    return effects


def _continue_with(
    continuation: ContinuationPolicy, due: Sequence[TaskDefinition]
) -> list[TaskDefinition]:
    # A parameter stored by its hash has to be read first; a regular claim does that.
    inline = [task for task in due if PayloadRef not in map(type, (task.data or {}).values())]
    chosen = continuation.choose(inline) if inline else ()
    return [claimed_by(task, continuation.identity) for task in inline if task.uuid in chosen]


def _group(view: RunView, created: Sequence[TaskDefinition]) -> Groups:
    """Give the tasks that feed one join, and enable nothing alone, a shared join counter."""
    if len(created) < MIN_GROUP_SIZE:
        return {}
    width = Counter(task.join for task in created if task.join)
    groups: Groups = {}
    for task in created:
        if width[task.join] >= MIN_GROUP_SIZE:
            task.join_id = id_within(view.id, view.generation, task.join)
            key = (task.join_id, task.task_list_name)
            group = groups.setdefault(key, Group(task.task_list_name, []))
            group.task_ids.append(task.uuid)
    return groups


def _leave_unclaimable(groups: Groups, created: Sequence[TaskDefinition]) -> None:
    """Send no message for tasks that wait or are held: they are counted with their group."""
    others = {task.uuid for task in created if task.state != TaskState.PENDING}
    if others:
        for key, group in list(groups.items()):
            group.task_ids[:] = [task_id for task_id in group.task_ids if task_id not in others]
            if not group.task_ids:
                del groups[key]

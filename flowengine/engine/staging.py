"""Advance a run: let the evaluator decide, and put what it decided into a commit.

There are two ways to come here. Under the run's lock, with everything read after it
(`taking_in`). Or without a lock, from what this process knows of the run: then the commit is
guarded, and is written only if the run still stands where it was evaluated (`settling`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flowengine.dispatch.notifier import Group
from flowengine.evaluator import (
    IterationChanges,
    Missing,
    PayloadRef,
    RunView,
    Snapshot,
    TaskDefinition,
    evaluate,
)
from flowengine.evaluator.records import Step, id_within
from flowengine.evaluator.states import ObjectType, RunState
from flowengine.evaluator.triggers import Trigger
from flowengine.program import Plan
from flowengine.store import payloads, steps
from flowengine.store.claims import WorkerIdentity
from flowengine.store.commits import CommitRows, RunHeader, claimed_by
from flowengine.store.executors import Executor

log = logging.getLogger("flowengine")

#: So many tasks of one commit that feed one join are counted together.
GROUP_LEAST = 8


#: Of a join and a task list: a message for one list reaches nobody who works on another.
Groups = dict[tuple[str, str], Group]


class ContinuationPolicy(Protocol):
    """A worker that goes on with what a commit enables, without a bell and a claim."""

    identity: WorkerIdentity

    def choose(self, due: Sequence[TaskDefinition]) -> Collection[str]:
        """Return the ids of the tasks that it takes at once."""


@dataclass
class Commit:
    """What one commit did to a run, for those who must be told after it."""

    run_id: str
    due: dict[str, int] = field(default_factory=dict)  #: new tasks by task list
    groups: Groups = field(default_factory=dict)  #: new tasks that feed one join
    taken: list[TaskDefinition] = field(default_factory=list)  #: new tasks the taker goes on with
    has_ended: bool = False
    waiter: str = ""  #: the run that waits for this one, which has ended
    has_more: bool = False  #: the evaluator has left something for its next turn
    said: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  #: of sys.log
    canceled: list[str] = field(default_factory=list)  #: steps whose open tasks are to be stopped

    def include(self, later: Commit) -> None:
        """Add what a later commit of the same run did."""
        for task_list, number in later.due.items():
            self.due[task_list] = self.due.get(task_list, 0) + number
        for key, group in later.groups.items():
            known = self.groups.setdefault(key, Group(group.task_list, []))
            known.task_ids.extend(group.task_ids)
        self.taken += later.taken
        self.has_ended = self.has_ended or later.has_ended
        self.waiter = self.waiter or later.waiter
        self.has_more = self.has_more or later.has_more
        self.said += later.said
        self.canceled += later.canceled


@dataclass
class CachedRun:
    """What is known of a run: its head, and some of its rows."""

    head: RunHeader
    snapshot: Snapshot = field(default_factory=Snapshot)


@dataclass
class Decision:
    """What the evaluator decided about a run; nothing of it is written yet."""

    known: CachedRun
    view: RunView
    changes: IterationChanges
    triggers: Sequence[Trigger]

    @property
    def is_empty(self) -> bool:
        return self.changes.is_empty and self.view.alarm == self.known.head.view.alarm


def decide(
    plan: Plan, known: CachedRun, triggers: Sequence[Trigger], now: int, *, prefetched: bool = False
) -> Decision | Missing:
    """Let the evaluator decide, or say which rows it lacks."""
    view = known.head.view.copied()
    changes = evaluate(plan, view, known.snapshot, triggers, now, prefetched=prefetched)
    if isinstance(changes, Missing):
        return changes
    return Decision(known, view, changes, triggers)


def supply(executor: Executor, lacking: Mapping[str, tuple[CachedRun, Missing]]) -> None:
    """Read what evaluations lack, for all runs together."""
    wanted = {run_id: missing.steps for run_id, (_, missing) in lacking.items() if missing.steps}
    found = steps.load(executor, wanted) if wanted else {}
    hashes = {digest for _, missing in lacking.values() for digest in missing.payloads}
    bodies = payloads.read_payloads(executor, hashes) if hashes else {}
    for run_id, (known, missing) in lacking.items():
        rows = found.get(run_id, {})
        known.snapshot.steps |= {key: rows.get(key) for key in missing.steps}
        known.snapshot.payloads |= {digest: bodies[digest] for digest in missing.payloads}


def put(
    decision: Decision,
    rows: CommitRows,
    now: int,
    continuation: ContinuationPolicy | None = None,
    *,
    goes_on: bool = False,
) -> Commit:
    """Put a decision into a commit; what is known of the run is from then on what follows it.

    Who `goes_on` takes care of what the evaluator has left; otherwise it is written as facts.
    """
    known, view, changes = decision.known, decision.view, decision.changes
    head, created = known.head, changes.created_tasks
    commit = Commit(view.id, canceled=changes.canceled_steps)
    touched = [*changes.created_steps, *changes.updated_steps]
    rows.add_steps(changes.created_steps, changes.updated_steps, known.snapshot.steps)
    if created:
        due = [task for task in created if task.due <= now]
        if continuation is not None:
            commit.taken = _take(continuation, due)
        commit.groups = _group(view, [task for task in created if task.lease == 0])
        for task in due:
            if task.lease == 0 and task.join_id is None:
                commit.due[task.task_list_name] = commit.due.get(task.task_list_name, 0) + 1
        counts: Counter[str] = Counter()
        for (join_id, _), group in commit.groups.items():
            counts[join_id] += len(group.task_ids)
        rows.add_events(changes.created_events, now)
        rows.add_joins(view.id, counts, now)
        rows.add_tasks(created, head.task_count)
    if changes.follow_ups and not goes_on:
        rows.add_follow_ups(view.id, head.revision + 1, changes.follow_ups, now)
        commit.has_more = True
    known.head = rows.save_run(head, view, _summary(decision, touched), now, tasks=len(created))
    rows.gather_payloads(view.id, now)
    for step in touched:
        known.snapshot.steps[step.key] = step
        if step.object_type == ObjectType.LOG and step.is_final:
            commit.said.append((step.path, step.params))
    commit.has_ended = view.state in RunState.FINAL
    if commit.has_ended and view.waiter is not None:
        rows.add_parent_fact(view, view.waiter, now)
        rows.gather_payloads(view.id, now)
        commit.waiter = view.waiter.run_id
    return commit


def _take(continuation: ContinuationPolicy, due: Sequence[TaskDefinition]) -> list[TaskDefinition]:
    # A large parameter would have to be read first: whoever claims does that.
    whole = [
        task
        for task in due
        if not any(isinstance(value, PayloadRef) for value in (task.data or {}).values())
    ]
    chosen = continuation.choose(whole) if whole else ()
    return [claimed_by(task, continuation.identity) for task in whole if task.uuid in chosen]


def _group(view: RunView, created: Sequence[TaskDefinition]) -> Groups:
    """Count tasks together that were opened together and enable nothing alone."""
    if len(created) < GROUP_LEAST:
        return {}
    width = Counter(task.join for task in created if task.join)
    groups: Groups = {}
    for task in created:
        if width[task.join] >= GROUP_LEAST:
            task.join_id = id_within(view.id, view.generation, task.join)
            key = (task.join_id, task.task_list_name)
            group = groups.setdefault(key, Group(task.task_list_name, []))
            group.task_ids.append(task.uuid)
    return groups


def _summary(decision: Decision, touched: Sequence[Step]) -> dict[str, Any]:
    """One commit in a few words: what happened, and what came of it."""
    happened: dict[str, int] = {}
    for trigger in decision.triggers:
        name = type(trigger).__name__
        happened[name] = happened.get(name, 0) + 1
    ended = [step.path for step in touched if step.is_final]
    return {
        "happened": happened,
        "created": len(decision.changes.created_steps),
        "ended": ended[:10],
        "tasks": len(decision.changes.created_tasks),
        "state": decision.view.state,
    }

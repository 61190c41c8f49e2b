"""Advance a run: lock it, take in what happened, decide, write, all in one transaction.

The lock comes first and the reading after it. A report that is committed while we wait
for the lock is therefore seen once we have it, and whoever comes to the lock after us
sees what we wrote: no wake-up is lost, and nobody needs to look twice.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row

from flowengine.dispatch.bells import Group
from flowengine.engine.programs import Programs
from flowengine.evaluator import (
    IterationChanges,
    Missing,
    RunView,
    Snapshot,
    TaskDefinition,
    evaluate,
)
from flowengine.evaluator.happenings import (
    Happening,
    Started,
    StepContinue,
    StepFail,
    Unfold,
)
from flowengine.evaluator.records import Step, derived_id
from flowengine.evaluator.states import ObjectType, RunState
from flowengine.store import codec, joins, listening, payloads, reports, runs, steps, tasks
from flowengine.store.rows import MANY

log = logging.getLogger("flowengine")


#: So many tasks of one commit that feed one join are counted together.
GROUP_LEAST = 8


@dataclass
class Commit:
    """What one transaction did, for those who must be told after it is committed."""

    run_id: str
    due: Counter[str] = field(default_factory=Counter)  #: new tasks by task list
    groups: dict[str, Group] = field(default_factory=dict)  #: new tasks that feed one join
    has_ended: bool = False
    has_more: bool = False  #: the evaluator has left something for its next turn
    said: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  #: of sys.log


_FACTS: dict[str, Callable[[dict[str, Any]], Happening]] = {
    "StepContinue": lambda fact: StepContinue(fact["step_id"], fact["step_key"], fact["result"]),
    "StepFail": lambda fact: StepFail(fact["step_id"], fact["step_key"], fact["error"]),
    "Unfold": lambda fact: Unfold(fact["step_key"]),
}


def take_in(connection: Connection, run: Row[Any], programs: Programs, now: int) -> Commit:
    """Take in all facts and reports that wait, under the run's lock."""
    reported = reports.reported(connection, run.id)
    facts = runs.waiting_facts(connection, run.id)
    commit = Commit(run.id)
    if not reported and not facts:
        return commit
    if run.state not in RunState.FINAL:
        happenings: list[Happening] = [report.ended for report in reported]
        happenings += [_FACTS[fact.kind](codec.load(fact.payload)) for fact in facts]
        known: dict[str, Step | None] = {r.step.key: r.step for r in reported}
        commit = decide(connection, run, programs, happenings, now, known)
    reports.take_in(connection, [report.task_id for report in reported])
    runs.take_in_facts(connection, [fact.id for fact in facts])
    # As many as one statement holds: there may be more behind them.
    commit.has_more = commit.has_more or MANY in (len(reported), len(facts))
    return commit


def begin(
    connection: Connection, run: Row[Any], programs: Programs, inputs: dict[str, Any], now: int
) -> Commit:
    """Evaluate a run for the first time."""
    return decide(connection, run, programs, [Started(inputs)], now, {})


def decide(
    connection: Connection,
    run: Row[Any],
    programs: Programs,
    happenings: Sequence[Happening],
    now: int,
    known: dict[str, Step | None],
) -> Commit:
    """Let the evaluator decide, loading what it asks for, and write what it decided."""
    plan = programs.plan(connection, run.program_hash)
    snapshot = Snapshot(known)
    while True:
        view = runs.view_of(run)
        changes = evaluate(plan, view, snapshot, happenings, now)
        if not isinstance(changes, Missing):
            break
        if changes.steps:
            snapshot.steps |= steps.load_by_key(connection, run.id, changes.steps)
        if changes.payloads:
            snapshot.payloads |= payloads.load_payloads(connection, changes.payloads)
    return _write(connection, run, view, changes, happenings, now)


def _write(
    connection: Connection,
    run: Row[Any],
    view: RunView,
    changes: IterationChanges,
    happenings: Sequence[Happening],
    now: int,
) -> Commit:
    commit = Commit(run.id)
    if changes.is_empty and view.alarm == run.alarm:
        return commit
    encoder = codec.Encoder()
    revision = run.revision + 1
    steps.insert(connection, changes.created_steps, encoder)
    steps.save(connection, changes.updated_steps, encoder)
    steps.insert_events(connection, changes.created_events, now)
    steps.save_events(connection, changes.updated_events, now)
    groups = _group(run, changes.created_tasks)
    joins.add(connection, run.id, {key: len(group.task_ids) for key, group in groups.items()}, now)
    tasks.insert(connection, changes.created_tasks, run.task_count)
    # After the insert: what ended a step may have come behind the failure that opened a try.
    reports.cancel_open(connection, changes.canceled_steps, now)
    for number, follow_up in enumerate(changes.follow_ups):
        fact_id = derived_id(run.id, revision, number)
        runs.add_fact(connection, fact_id, run.id, follow_up.kind, follow_up.payload, now)
    runs.save(
        connection,
        view,
        revision=revision,
        task_count=run.task_count + len(changes.created_tasks),
        encoder=encoder,
        now=now,
    )
    payloads.save_payloads(connection, encoder.payloads, now)
    runs.write_history(connection, run.id, revision, _summary(changes, view, happenings), now)
    commit.has_ended = view.state in RunState.FINAL
    if commit.has_ended:
        listening.announce(connection, run.id)
    commit.groups = groups
    commit.due = Counter(
        t.task_list_name for t in changes.created_tasks if t.due <= now and t.join_id is None
    )
    commit.has_more = bool(changes.follow_ups)
    commit.said = [
        (step.path, step.params)
        for step in (*changes.created_steps, *changes.updated_steps)
        if step.object_type == ObjectType.LOG and step.is_final
    ]
    return commit


def _group(run: Row[Any], created: Sequence[TaskDefinition]) -> dict[str, Group]:
    """Count tasks together that were opened together and enable nothing alone."""
    width = Counter(task.join for task in created if task.join)
    groups: dict[str, Group] = {}
    for task in created:
        if width[task.join] >= GROUP_LEAST:
            task.join_id = derived_id(run.id, run.generation, task.join)
            group = groups.setdefault(task.join_id, Group(task.task_list_name, []))
            group.task_ids.append(task.uuid)
    return groups


def _summary(
    changes: IterationChanges, view: RunView, happenings: Sequence[Happening]
) -> dict[str, Any]:
    """One commit in a few words: what happened, and what came of it."""
    touched = (*changes.created_steps, *changes.updated_steps)
    ended = [step.path for step in touched if step.is_final]
    return {
        "happened": dict(Counter(type(happening).__name__ for happening in happenings)),
        "created": len(changes.created_steps),
        "ended": ended[:10],
        "tasks": len(changes.created_tasks),
        "state": view.state,
    }

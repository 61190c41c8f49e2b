"""Intents: what the evaluator wants of rows that others change without the run's lock.

Each is a guarded statement in the transaction that commits the decision.
"""

from __future__ import annotations

from typing import Any

from flowengine.engine.staging import CommitEffects
from flowengine.evaluator import cancellation
from flowengine.evaluator.actions import ActionKind
from flowengine.evaluator.records import ChildCancellation, TaskHold, id_within
from flowengine.store import Session

_CHILDREN = 500  # that one transaction of the parent cancels


def apply_intents(session: Session, effects: CommitEffects, now: int) -> None:
    """Apply the intents of a run's decisions; the caller has locked the run, and commits."""
    is_counted, freed = session.reports.cancel_open(effects.run_id, effects.canceled, now)
    effects.has_more = effects.has_more or is_counted
    if effects.task_hold is TaskHold.HOLD:
        freed += session.reports.hold(effects.run_id, now)
    elif effects.task_hold is TaskHold.RELEASE:
        due, waiting = session.reports.end_hold(effects.run_id, now)
        for task_list, number in due.items():
            effects.due[task_list] = effects.due.get(task_list, 0) + number
        effects.waiting |= waiting
    for limits in freed:
        effects.add_freed(limits)
    for each in effects.child_cancellations:
        _cancel_children(session, effects, each, now)
    if effects.refusals:
        session.inbox.forget_refused(effects.refusals)


def _cancel_children(
    session: Session, effects: CommitEffects, given: ChildCancellation, now: int
) -> None:
    """Add a cancellation to the inboxes of the next child runs.

    If this process dies before it has evaluated them, recovery finds their facts.
    """
    chosen: dict[str, Any] = {"below": given.below, "superseded": given.superseded}
    children = session.runs.open_children(effects.run_id, given.after, _CHILDREN, **chosen)
    subject = (given.at, given.spares_always, *chosen.values())
    for child_id, path in children:
        if given.spares_always and cancellation.is_path_in_always(path[len(given.below) :]):
            continue
        fact_id = id_within(child_id, effects.run_id, *subject)
        about = {"actor": given.actor, "reason": given.reason, "at": now}
        fact = {"id": fact_id, "kind": ActionKind.CANCEL.value, **about}
        session.inbox.add_fact(fact_id, child_id, "Action", fact, now)
        effects.told_runs.append(child_id)
    if len(children) == _CHILDREN:
        who = {"actor": given.actor, "reason": given.reason, "at": given.at}
        more = {"after": children[-1][0], **chosen, **who}
        fact_id = id_within(effects.run_id, *subject, more["after"])
        session.inbox.add_fact(fact_id, effects.run_id, cancellation.CHILDREN, more, now)
        effects.has_more = True

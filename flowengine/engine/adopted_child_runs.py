"""A retried step takes up the child run of its earlier generation that was repaired by itself.

The child run failed, and the step with it. Somebody retried the child run since, or completed a
step of it by hand: the new step gets its result, or waits for it, instead of starting another.
"""

from __future__ import annotations

from flowengine.engine.forks import is_repeated
from flowengine.engine.staging import CommitEffects
from flowengine.engine.start_request import Parent, StartRequest
from flowengine.evaluator.actions import ActionKind
from flowengine.evaluator.records import Waiter
from flowengine.evaluator.states import RunState, StepState
from flowengine.store import Session, codec
from flowengine.store.children import LastChild
from flowengine.store.commits import CommitPlan, RunHeader

_GOES_ON = (RunState.RUNNING, RunState.HELD)
_FACTS = 1_000  # of a run, that are searched for a cancellation


def adopt_child(
    session: Session, request: StartRequest, parent: Parent, now: int
) -> CommitEffects | None:
    """Let a step wait for a run that exists; None: there is none that it may take.

    Idempotent: another try of the step finds the run that is its own.
    """
    last = session.children.last(parent.run_id, parent.step_key)
    if last is None or (last.step_id != parent.step_id and not _is_open_to(session, request, last)):
        return None
    # The run may have ended, or have been given to another step, before it was locked.
    head = session.runs.lock(last.run.id)
    last = session.children.last(parent.run_id, parent.step_key)
    if head is None or last is None or last.run.id != head.view.id:
        return None
    if last.step_id == parent.step_id:
        return CommitEffects(last.run.id)
    if not _is_open_to(session, request, last):
        return None
    step = session.runs.starting_step(parent.run_id, parent.step_id)
    if step is None or step.superseded:
        return CommitEffects(last.run.id)  # the report of this try is refused
    return _give(session, head, last, parent, now)


def _is_open_to(session: Session, request: StartRequest, last: LastChild) -> bool:
    """Whether the run was repaired, and is the one that the step starts now."""
    run = last.run
    if run.state == RunState.COMPLETED:
        # A step that fails after the end of its child run has taken the result.
        has_missed = run.finished is not None and run.finished >= last.step_updated
        is_repaired = has_missed and last.step_state in (StepState.ERROR, StepState.CANCELLED)
    else:
        is_repaired = run.state in _GOES_ON and last.step_state == StepState.ERROR
        is_repaired = is_repaired and not _is_to_be_cancelled(session, run.id)
    return is_repaired and is_repeated(session, request, run)


def _is_to_be_cancelled(session: Session, run_id: str) -> bool:
    facts = session.inbox.facts(run_id, _FACTS)
    return any(kind == "Action" and body["kind"] == ActionKind.CANCEL for _, kind, body in facts)


def _give(
    session: Session, head: RunHeader, last: LastChild, parent: Parent, now: int
) -> CommitEffects:
    effects, rows = CommitEffects(last.run.id), CommitPlan(rule=session.outbox_rule)
    view = head.view.copied()
    view.waiter = Waiter(parent.run_id, parent.step_id, parent.step_key)
    if view.state == RunState.COMPLETED:
        view.outputs = codec.attributes(last.run.outputs)
        rows.add_parent_fact(view, view.waiter, now)
        rows.gather_payloads(view.id, now, to_run=parent.run_id)
        session.children.report_end(rows)  # no commit: the run has ended, and stays as it is
        effects.has_ended, effects.parent_run_id = True, parent.run_id
    else:
        # A new revision: other processes have the run in their cache, with the old step.
        entry = {"happened": {"TakenUp": 1}, "state": view.state, "generation": view.generation}
        rows.save_run(head, view, entry, now, tasks=0)
        session.commit(rows)
    session.children.give(view.id, parent.step_id)
    return effects

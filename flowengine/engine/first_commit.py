"""The first commit of a run: its row, its first steps and its first tasks."""

from __future__ import annotations

from flowengine.engine import staging
from flowengine.engine.staging import CachedRun, CommitEffects, ContinuationPolicy
from flowengine.engine.start_request import LEAVE, StartRequest
from flowengine.evaluator import Missing, RunView, Snapshot, Step
from flowengine.evaluator.records import Waiter
from flowengine.evaluator.triggers import Started
from flowengine.store import Session, codec
from flowengine.store.commit_rows import RunOrigin
from flowengine.store.commits import CommitPlan, RunHeader


class _NoRows(dict[str, Step | None]):
    """The rows of a run that has none yet: every key is present and maps to None."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> None:
        return None


def stage_first_commit(
    session: Session,
    request: StartRequest,
    rows: CommitPlan,
    now: int,
    continuation: ContinuationPolicy | None = None,
) -> CommitEffects:
    """Evaluate a run for the first time, and turn its update into an insert."""
    view = RunView(request.run_id, request.workflow, request.digest, priority=request.priority)
    view.tenant, parent = request.tenant, request.parent
    if request.deadline is not None:
        view.deadline = now + round(request.deadline * 1000)
    view.created = 0 if parent is not None else now
    view.singleton = request.singleton
    view.agent_call = request.agent_call
    if parent is not None and parent.waits:
        view.waiter = Waiter(parent.run_id, parent.step_id, parent.step_key)
    run = CachedRun(RunHeader(view, 0, 0), Snapshot(_NoRows()))
    triggers = [Started(request.inputs)]
    while isinstance(decision := staging.decide(request.plan, run, triggers, now), Missing):
        # A new run has no rows to load: only results of the cache, and their values.
        assert not decision.steps
        staging.load_missing(session, {view.id: (run, decision)})
    effects = staging.stage(decision, rows, now, continuation)
    effects.started = run
    rows.insert_run(origin_of(request, now), request.labels)
    return effects


def origin_of(request: StartRequest, now: int) -> RunOrigin:
    parent, ttl, deadline = request.parent, request.key_ttl, request.deadline
    return RunOrigin(
        tenant=request.tenant,
        workflow=request.workflow,
        program_hash=request.digest,
        priority=request.priority,
        labels=codec.dump(dict(request.labels)) if request.labels else None,
        idempotency_key=request.key,
        key_expires=None if ttl is None else now + round(ttl * 1000),
        singleton_key=request.singleton,
        queued_key=None,
        root_run_id=parent.root_run_id if parent else request.run_id,
        parent_run_id=parent.run_id if parent else None,
        parent_step_id=parent.step_id if parent else None,
        waiting_step_key=parent.step_key if parent and parent.waits else None,
        depth=parent.depth if parent else 0,
        on_cancel=LEAVE if parent and parent.on_cancel == LEAVE else None,
        agent_call=request.agent_call,
        deadline=None if deadline is None else now + round(deadline * 1000),
        created=now,
    )

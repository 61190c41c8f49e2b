"""Forks: a new run that takes over steps of another one.

The rows of the other run are copied inside the database, then retried as its own would be: what
the fork keeps is adopted, everything else runs. Large values are shared. The other run is locked
until the fork is committed with its references to them: a purge skips a locked run, so it cannot
remove them in between.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from flowengine.actors import Actor
from flowengine.engine import staging
from flowengine.engine.after_commit import AfterCommit
from flowengine.engine.closed_workflows import refuse_closed
from flowengine.engine.control import named_actor
from flowengine.engine.first_commit import origin_of
from flowengine.engine.program_cache import PreparedProgram, ProgramCache
from flowengine.engine.retries import chosen_steps
from flowengine.engine.staging import CachedRun, CommitEffects
from flowengine.engine.start_request import Parent, StartRequest, start_request
from flowengine.errors import ActionRefused, UnknownRun
from flowengine.evaluator import Missing, RunView
from flowengine.evaluator.actions import ActionKind
from flowengine.evaluator.records import Waiter, derived_id, row_key
from flowengine.evaluator.states import RunState
from flowengine.evaluator.triggers import Action
from flowengine.program import Program
from flowengine.program.addresses import RowKind
from flowengine.program.nodes import Json
from flowengine.program.plan import FacetPlan
from flowengine.settings import Settings
from flowengine.store import Session, Store, codec
from flowengine.store.commits import CommitPlan, RunHeader
from flowengine.store.runs import StoredRun


class Forks:
    def __init__(
        self,
        database: Store,
        programs: ProgramCache,
        after_commit: AfterCommit,
        settings: Settings,
    ) -> None:
        self._database, self._programs = database, programs
        self._after_commit, self._settings = after_commit, settings

    def fork(
        self,
        run_id: str,
        *,
        from_step: str | None = None,
        inputs: Mapping[str, Json] | None = None,
        program: Program | Mapping[str, Any] | None = None,
        reason: str = "",
        actor: Actor | str = "",
        key: str | None = None,
    ) -> str:
        """Start a new run that keeps the results of another, and return its id.

        It runs `from_step`, the steps that depend on it and those that have not ended; without a
        step it runs the failed steps, as `retry` does. `inputs` replace those of the other run for
        the steps that run; without a step all steps run. A second fork with the same `key` returns
        the first. Raises UnknownRun, also for a run that was purged, and ActionRefused.
        """
        fork_id = uuid.uuid4().hex if key is None else derived_id(run_id, "fork", key)
        options: dict[str, Json] = {"fork": run_id}
        if from_step is not None:
            options["from_step"] = from_step
        who = named_actor(actor)
        with self._database.write() as session:
            head, now = session.runs.lock(run_id), session.now()
            stored = session.runs.get(run_id)
            bound = self._settings.tenant
            earlier = None if key is None else session.runs.get(fork_id)
            known = stored or earlier  # the run may have been purged since its fork
            if known is None or (bound and known.tenant != bound):
                raise UnknownRun(run_id)
            if earlier is not None:
                return fork_id
            assert head is not None
            assert stored is not None
            prepared = self._programs.stored(session, stored.program_hash)
            if program is not None:
                prepared = self._programs.prepare(program)
                options["program"] = prepared[0]
                session.payloads.save_program(*prepared[:2], now)
            request = self._request(session, prepared, stored, inputs, fork_id)
            if inputs is not None:
                options["inputs"] = request.inputs
            action = Action(fork_id, ActionKind.RETRY, who, reason, now, options=options)
            effects = stage_fork(session, head, request, action, now)
            done = {"fork": fork_id, "from_step": from_step}
            about: dict[str, Any] = {"actor": who, "reason": reason, "options": done, "now": now}
            session.actions.add(derived_id(fork_id, "made"), "fork", run=run_id, **about)
        self._after_commit.finish([effects])
        return fork_id

    def steps_to_run(
        self,
        run_id: str,
        *,
        from_step: str | None = None,
        inputs: Mapping[str, Json] | None = None,
        program: Program | Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Return the paths of the known steps that such a fork would run; raises like `fork`."""
        options: dict[str, Json] = {"fork": run_id}
        if from_step is not None:
            options["from_step"] = from_step
        with self._database.read() as session:
            head, stored = session.runs.headers([run_id]).get(run_id), session.runs.get(run_id)
            bound = self._settings.tenant
            if head is None or stored is None or (bound and stored.tenant != bound):
                raise UnknownRun(run_id)
            prepared = self._programs.stored(session, stored.program_hash)
            if program is not None:
                prepared = self._programs.prepare(program)
                options["program"] = prepared[0]
            if inputs is not None:
                request = self._request(session, prepared, stored, inputs, "")
                options["inputs"] = request.inputs
            action = Action("", ActionKind.RETRY, "", "", session.now(), options=options)
            return chosen_steps(session, prepared[2], head, action)

    def _request(
        self,
        session: Session,
        prepared: PreparedProgram,
        source: StoredRun,
        inputs: Mapping[str, Json] | None,
        fork_id: str,
    ) -> StartRequest:
        about: dict[str, Any] = {"priority": source.priority, "tenant": source.tenant}
        about |= {"run_id": fork_id, "labels": codec.load(source.labels) or {}}
        facet = prepared[2].workflow(source.workflow)
        if inputs is None:
            about["deadline"] = facet.deadline
            return StartRequest(*prepared, source.workflow, {}, **about)
        given = {**inputs_of(session, source.id, facet), **inputs}
        return start_request(prepared, source.workflow, given, self._settings, **about)


def inputs_of(session: Session, run_id: str, facet: FacetPlan) -> dict[str, Json]:
    """Return the inputs that a run was started with, with the defaults."""
    key = row_key(RowKind.STEP, facet.short_name)
    root = session.steps.load({run_id: [key]})[run_id].get(key)
    params = session.payloads.resolved(root.params) if root is not None else {}
    return {field.name: params[field.name] for field in facet.params if field.name in params}


def is_repeated(session: Session, request: StartRequest, earlier: StoredRun) -> bool:
    """Whether a start has the workflow, the program and the inputs of an earlier run."""
    if (earlier.workflow, earlier.program_hash) != (request.workflow, request.digest):
        return False
    facet = request.plan.facets[request.workflow]
    return inputs_of(session, earlier.id, facet) == {**facet.defaults, **request.inputs}


def stage_child_fork(
    session: Session, request: StartRequest, parent: Parent, now: int
) -> CommitEffects | None:
    """Fork the failed child run that an earlier generation of a step has started.

    So a retry of the parent's step keeps what the child had completed. None if there is none, or
    if the step now starts another program or passes other inputs.
    """
    last = session.children.last(parent.run_id, parent.step_key)
    if last is None or last.run.state not in (RunState.FAILED, RunState.CANCELLED):
        return None
    earlier = last.run
    is_started = session.runs.get(request.run_id) is not None
    if is_started or not is_repeated(session, request, earlier):
        return None
    head = session.runs.lock(earlier.id)
    if head is None:
        return None
    options: dict[str, Json] = {"fork": earlier.id}
    reason = f"the step {parent.step_id} of run {parent.run_id} is retried"
    action = Action(request.run_id, ActionKind.RETRY, named_actor(""), reason, now, options=options)
    return stage_fork(session, head, request, action, now)


def stage_fork(
    session: Session, source: RunHeader, request: StartRequest, action: Action, now: int
) -> CommitEffects:
    """Insert a run with the rows of another, which is locked; raise ActionRefused."""
    before, parent = source.view, request.parent
    view = RunView(
        request.run_id,
        request.workflow,
        request.digest,
        generation=before.generation,
        state=before.state if before.state in RunState.FINAL else RunState.RUNNING,
        priority=request.priority,
        open_steps=before.open_steps,
        step_count=before.step_count,
        value_bytes=before.value_bytes,
        tenant=request.tenant,
        created=now if parent is None else 0,
    )
    if request.deadline is not None:
        view.deadline = now + round(request.deadline * 1000)
    if parent is not None and parent.waits:
        view.waiter = Waiter(parent.run_id, parent.step_id, parent.step_key)
    run = CachedRun(RunHeader(view, 0, 0))
    session.forks.copy_steps(before.id, view.id)
    decision = staging.decide(request.plan, run, [action], now)
    while isinstance(decision, Missing):
        staging.load_missing(session, {view.id: (run, decision)})
        decision = staging.decide(request.plan, run, [action], now)
    for refusal in decision.changes.refusals:
        raise ActionRefused(before.id, "fork", refusal.reason)
    rows = CommitPlan(rule=session.outbox_rule)
    effects = staging.stage(decision, rows, now)
    rows.insert_run(origin_of(request, now), request.labels)
    if not session.commit(rows):
        refuse_closed(session, request)
    session.forks.finish(before.id, view.id)
    return effects

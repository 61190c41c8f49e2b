"""The steps of a run as readers see them: with their tries, waits and cached results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from flowengine.engine.cache_hits import cache_hits
from flowengine.engine.results import StepInfo, child_run_of, seen_state
from flowengine.engine.run_waits import Waits
from flowengine.engine.step_tries import StepTries, allowed_tries, tries_by_step
from flowengine.engine.waits_for import step_waits_for
from flowengine.evaluator import Step
from flowengine.store import Session
from flowengine.store.runs import StoredRun
from flowengine.store.tasks import StoredTry


def step_infos(
    session: Session, run: StoredRun, steps: Sequence[Step], rows: Sequence[StoredTry]
) -> list[StepInfo]:
    """Return these steps of a run; `rows` are their tries."""
    tries = tries_by_step(session, rows, session.now())
    has_retries = any(tried.failed for tried in tries.values())
    allowed = allowed_tries(session, run.program_hash) if has_retries else {}
    waits, now = Waits.of_steps(session, run.id, steps), session.now()
    found = [_step_info(session, step, tries.get(step.id), allowed, waits) for step in steps]
    untried = [step.id for step in steps if step.id not in tries]
    hits = cache_hits(session, run.id, run.program_hash, untried)
    return [
        replace(step, waits_for=step_waits_for(step, now), cached_from=hits.get(step.id))
        for step in found
    ]


def _step_info(
    session: Session,
    step: Step,
    tried: StepTries | None,
    allowed: Mapping[str, int],
    waits: Waits,
) -> StepInfo:
    state = seen_state(step.state, tried.state if tried else None)
    found = StepInfo(
        id=step.id,
        path=step.path,
        object_type=step.object_type,
        facet=step.facet_name,
        state=state,
        parent=step.parent,
        key=step.key,
        index=step.index,
        params=session.payloads.shown(step.params),
        returns=session.payloads.shown(step.returns),
        error=step.error,
        created=step.created,
        updated=step.updated,
        address=step.address,
        wakes_at=waits.wakes_at.get(step.id),
        question=waits.questions.get(step.key, ""),
    )
    if tried is None:
        return found
    return replace(
        found,
        updated=max(step.updated, tried.updated),
        child_run=child_run_of(step.id, step.facet_name, state, tried.child_run),
        all_tries=tried.all,
        **tried.shown(allowed.get(step.facet_name), step.activation),
    )

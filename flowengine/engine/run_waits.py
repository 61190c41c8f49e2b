"""Read what steps and runs wait for: a few queries for a whole list of runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowengine.engine import run_places
from flowengine.engine.waits_for import WaitKind, WaitsFor, blocked, first_of
from flowengine.evaluator import Step
from flowengine.evaluator.functions import DIVERGED
from flowengine.evaluator.states import RunState, StepState
from flowengine.evaluator.waits import timer_id
from flowengine.program.function_options import function_of
from flowengine.program.standard import WAIT_FOR, WAITS
from flowengine.store import Session
from flowengine.store.records import CIRCUIT, circuit_of
from flowengine.store.shown_values import shown_step
from flowengine.store.steps import StepDetails


@dataclass(frozen=True, slots=True)
class Waits:
    """Names and times of the waiting steps of one run."""

    wakes_at: Mapping[str, int] = field(default_factory=dict)  #: by the id of the step
    questions: Mapping[str, str] = field(default_factory=dict)  #: by the key of the step

    @classmethod
    def of_steps(cls, session: Session, run_id: str, steps: Iterable[Step | StepDetails]) -> Waits:
        """Read those of these steps; nothing is read if none of them calls a waiting facet."""
        waiting = [
            step
            for step in steps
            if step.facet_name in WAITS and step.state == StepState.EVENT_TRANSMIT
        ]
        if not waiting:
            return cls()
        questions = {}
        if any(step.facet_name == WAIT_FOR for step in waiting):
            questions = {q.step_key: q.name for q in session.waits.questions([run_id])}
        return cls(session.waits.wakes(timer_id(step.id) for step in waiting), questions)


def waits_of_runs(session: Session, runs: Sequence[Any]) -> dict[str, WaitsFor]:
    """Return what each of these runs waits for; without those that have ended or run a step."""
    found: defaultdict[str, list[WaitsFor]] = defaultdict(list)
    open_runs = {run.id: run for run in runs if run.state not in RunState.FINAL}
    for run in open_runs.values():
        if run.state == RunState.HELD:
            found[run.id].append(WaitsFor(WaitKind.HOLD, "", run.updated))
    queued = {run.id: run for run in open_runs.values() if run.state == RunState.QUEUED}
    for run_id, wait in _queued(session, queued) if queued else ():
        found[run_id].append(wait)
    waiting = [run.id for run in open_runs.values() if run.open_steps]
    if waiting:
        busy = session.waits.running(waiting)
        idle = [run_id for run_id in waiting if run_id not in busy]
        alarmed = {r.id for r in open_runs.values() if (r.alarm or "").startswith(DIVERGED)}
        for run_id, wait in _waits(session, idle, alarmed):
            found[run_id].append(wait)
        for task in session.waits.limited([run_id for run_id in idle if not found[run_id]]):
            found[task.run_id].append(blocked(task.key, task.since))
        for run_id in idle:
            if not found[run_id]:
                run = open_runs[run_id]
                subject = f"{run.open_steps:,} step" + ("" if run.open_steps == 1 else "s")
                found[run_id].append(WaitsFor(WaitKind.WORKER, subject, run.updated))
    named = {run_id: first_of(waits) for run_id, waits in found.items()}
    return {run_id: wait for run_id, wait in named.items() if wait is not None}


def _queued(session: Session, runs: Mapping[str, Any]) -> Iterable[tuple[str, WaitsFor]]:
    """Return what queued runs wait for: a place of their workflow, or a singleton key."""
    held: dict[tuple[str, str, str], str] = {}
    for run_id, *queue in session.run_keys.queues_of(list(runs)):
        tenant, workflow, key = queue
        if (tenant, workflow, key) not in held:
            if run_places.is_of_places(key):
                taken = session.run_keys.singletons_like(tenant, workflow, run_places.PLACES)
                holder = next(iter(taken.values()), "")
            else:
                holder = session.run_keys.with_singleton(tenant, workflow, key) or ""
            held[tenant, workflow, key] = holder
        subject = f"singleton key {key}"
        if run_places.is_of_places(key):
            subject = f"runs of {workflow}: {run_places.limit_of(key)}"
        holder = held[tenant, workflow, key]
        yield run_id, WaitsFor(WaitKind.LIMIT, subject, runs[run_id].created, held_by=holder)


def _waits(
    session: Session, run_ids: Sequence[str], diverged: Collection[str]
) -> Iterable[tuple[str, WaitsFor]]:
    if not run_ids:
        return
    questions = session.waits.questions(run_ids)
    answered_until: dict[str, int] = {}
    for timer in session.waits.timers(run_ids):
        if timer.kind == WAIT_FOR:
            answered_until[timer.step_id] = timer.due
        elif timer.kind in WAITS:
            yield timer.run_id, WaitsFor(WaitKind.TIME, "", timer.since, timer.due)
    by_run: defaultdict[str, list[str]] = defaultdict(list)
    for question in questions:
        by_run[question.run_id].append(question.step_key)
    steps = session.steps.load(by_run, decode=shown_step) if by_run else {}
    for question in questions:
        step = steps[question.run_id].get(question.step_key)
        # Without its step's key a mailbox counts as one at which the step still waits.
        if not question.step_key or (step and step.state == StepState.EVENT_TRANSMIT):
            until = answered_until.get(step.id) if step else None
            yield (
                question.run_id,
                WaitsFor(WaitKind.ANSWER, question.name, question.since, until),
            )
    for child in session.waits.children(run_ids):
        yield child.run_id, WaitsFor(WaitKind.CHILD_RUN, child.id, child.since)
    for task in session.waits.postponed(run_ids, session.now()):
        if task.lease > 0 and (task.limit_key or "").startswith(CIRCUIT):
            wait = WaitsFor(WaitKind.CIRCUIT, circuit_of(task.limit_key), task.since, task.due)
        elif task.lease > 0 and task.run_id in diverged and function_of(task.facet):
            wait = WaitsFor(WaitKind.DIVERGED, task.facet, task.since, task.due)
        else:
            wait = WaitsFor(WaitKind.RETRY, task.step_path, task.since, task.due)
        yield task.run_id, wait

"""Read what there is to know about runs, for people and their tools."""

from __future__ import annotations

from typing import Any

from flowengine.engine.results import RunInfo, RunSummary, StepInfo, parked_until, seen_state
from flowengine.errors import AmbiguousRun, UnknownRun
from flowengine.evaluator.records import row_key
from flowengine.evaluator.states import RunState
from flowengine.program.addresses import RowKind
from flowengine.store import Session, codec
from flowengine.store.runs import StoredRun


def run_info(session: Session, run_id: str) -> RunInfo:
    row = session.runs.get(run_id)
    if row is None:
        raise UnknownRun(run_id)
    return _info(session, row)


def find_run(session: Session, beginning: str) -> RunInfo:
    found = session.runs.with_prefix(beginning)
    if not found:
        raise UnknownRun(beginning)
    if len(found) > 1:
        raise AmbiguousRun(beginning)
    return _info(session, found[0])


def newest_runs(
    session: Session, *, workflow: str | None, state: str | None, limit: int
) -> list[RunInfo]:
    found = session.runs.newest(workflow=workflow, state=state, limit=limit)
    return [_info(session, row) for row in found]


def run_summaries(
    session: Session,
    *,
    workflow: str | None = None,
    state: str | None = None,
    before: str | None = None,
    limit: int,
) -> list[RunSummary]:
    """Return the newest runs as one line each; with `before`, those that are listed after it."""
    last = None
    if before is not None and (last := session.runs.get(before)) is None:
        raise UnknownRun(before)
    found = session.runs.summaries(
        states=[state] if state else sorted({RunState.RUNNING, *RunState.FINAL}),
        workflow=workflow,
        before=last,
        limit=limit,
    )
    progress = session.steps.progress([row.id for row in found])
    reported = session.reports.recorded_counts([row.id for row in found])
    return [
        RunSummary(
            id=row.id,
            workflow=row.workflow,
            state=row.state,
            error=codec.load(row.error),
            alarm=row.alarm,
            created=row.created,
            finished=row.finished,
            open_steps=row.open_steps,
            key=row.idempotency_key,
            steps=progress.get(row.id, (0, 0))[1],
            steps_ended=progress.get(row.id, (0, 0))[0] + reported.get(row.id, 0),
        )
        for row in found
    ]


def run_inputs(session: Session, run: RunInfo) -> dict[str, Any]:
    """Return what a run was started with: the parameters of its root."""
    key = row_key(RowKind.STEP, run.workflow.rpartition(".")[2])
    root = session.steps.load({run.id: [key]})[run.id].get(key)
    return session.payloads.resolved(root.params) if root else {}


def _info(session: Session, row: StoredRun) -> RunInfo:
    outputs = None
    if row.outputs is not None:
        outputs = session.payloads.resolved(codec.attributes(row.outputs))
    return RunInfo(
        id=row.id,
        workflow=row.workflow,
        state=row.state,
        outputs=outputs,
        error=codec.load(row.error),
        alarm=row.alarm,
        created=row.created,
        updated=row.updated,
        finished=row.finished,
        revision=row.revision,
        open_steps=row.open_steps,
        key=row.idempotency_key,
        priority=row.priority,
        labels=codec.load(row.labels) or {},
        parent=row.parent_run_id,
    )


def step_infos(session: Session, run_id: str) -> list[StepInfo]:
    tries = {task.step_id: task for task in session.tasks.of_run(run_id)}  # the last wins
    found = []
    for step in session.steps.of_run(run_id):
        task = tries.get(step.id)
        found.append(
            StepInfo(
                id=step.id,
                path=step.path,
                object_type=step.object_type,
                facet=step.facet_name,
                state=seen_state(step.state, task.state if task else None),
                parent=step.parent,
                key=step.key,
                index=step.index,
                params=session.payloads.resolved(step.params),
                returns=session.payloads.resolved(step.returns),
                error=step.error,
                created=step.created,
                updated=max(step.updated, task.updated) if task else step.updated,
                tries=task.try_number if task else 0,
                losses=task.losses if task else 0,
                task_state=task.state if task else None,
                circuit=task.circuit if task else "",
                parked_until=(
                    parked_until(task.circuit, task.state, task.lease, task.due) if task else None
                ),
            )
        )
    return found

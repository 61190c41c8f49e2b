"""The state of a database as `flowengine top` shows it, in a limited number of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from flowengine.engine import Engine, RunInfo
from flowengine.engine.presentation import outstanding
from flowengine.engine.results import duration
from flowengine.engine.schedule_records import ScheduleInfo
from flowengine.engine.workers import WorkerInfo
from flowengine.evaluator.states import RunState

MAX_RUNS = 200  #: newest runs that are read; workflows are counted among them


@dataclass(frozen=True, slots=True)
class WorkflowRow:
    """A workflow: its runs among the newest ones, and the next tick of its schedules."""

    name: str
    open: int = 0
    completed: int = 0
    failed: int = 0
    last: int = 0  #: when the newest of these runs was started
    next_tick: int | None = None


@dataclass(frozen=True, slots=True)
class Overview:
    """What is on the screen at one moment."""

    now: int
    runs: Sequence[RunInfo] = ()
    workers: Sequence[WorkerInfo] = ()
    workflows: Sequence[WorkflowRow] = ()
    states: Counter[str] = field(default_factory=Counter)


def read_overview(engine: Engine, part: str, workflow: str) -> Overview:
    """Read what is shown of the workflows with `part` in their name, or of one workflow."""
    newest = engine.list(limit=MAX_RUNS)
    chosen = [run for run in newest if part.lower() in run.workflow.lower()]
    if workflow:
        # Of a workflow that is started seldom, none may be among the newest.
        chosen = list(engine.list(workflow=workflow, limit=MAX_RUNS))
    elif part and not chosen:
        chosen = list(engine.list(named=part, limit=MAX_RUNS))
    workflows = _workflows([*newest, *chosen], engine.schedules.list())
    return Overview(
        now=engine.database.now(),
        runs=chosen,
        workers=engine.workers.list(),
        workflows=[row for row in workflows if part.lower() in row.name.lower()],
        states=Counter(run.state for run in newest),
    )


def _workflows(runs: Iterable[RunInfo], schedules: Iterable[ScheduleInfo]) -> list[WorkflowRow]:
    by_id = {run.id: run for run in runs}
    of_name: dict[str, list[RunInfo]] = {}
    for run in by_id.values():
        of_name.setdefault(run.workflow, []).append(run)
    ticks: dict[str, list[int]] = {}
    for schedule in schedules:
        due = ticks.setdefault(schedule.workflow, [])
        due += [schedule.next_tick] if schedule.next_tick is not None else []
    found = []
    for name in sorted({*of_name, *ticks}):
        states = Counter(run.state for run in of_name.get(name, ()))
        found.append(
            WorkflowRow(
                name,
                open=sum(count for state, count in states.items() if state not in RunState.FINAL),
                completed=states[RunState.COMPLETED],
                failed=states[RunState.FAILED],
                last=max((run.created for run in of_name.get(name, ())), default=0),
                next_tick=min(ticks.get(name, ()), default=None),
            )
        )
    return found


def run_cells(run: RunInfo, now: int) -> tuple[str, ...]:
    """Return the texts of a run's row: id, workflow, state, age, duration, what it waits for."""
    waits = run.alarm or outstanding(run.open_steps, run.retry, now, run.waits_for)
    return (
        run.id[:8],
        run.workflow,
        run.state,
        duration(now - run.created),
        duration((run.finished or now) - run.created),
        run.error_text or ("" if run.is_final else waits),
    )


def workflow_cells(row: WorkflowRow, now: int) -> tuple[str, ...]:
    """Return the texts of a workflow's row: name, runs by state, the last start, the next tick."""
    return (
        row.name,
        str(row.open or ""),
        str(row.completed or ""),
        str(row.failed or ""),
        duration(now - row.last) if row.last else "",
        f"in {duration(row.next_tick - now)}" if row.next_tick is not None else "",
    )


def worker_cells(info: WorkerInfo, now: int) -> tuple[str, ...]:
    """Return the texts of a worker's row: name, tries and runs of its limits, heartbeat."""
    return (
        info.name,
        _of(info.tries, info.max_tasks),
        _of(info.runs, info.max_workflows),
        duration(now - info.heartbeat),
        ", ".join(info.task_lists) or "all",
    )


def _of(held: int, limit: int | None) -> str:
    return str(held) if limit is None else f"{held}/{limit}"

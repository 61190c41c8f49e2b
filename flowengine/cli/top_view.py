"""The state of a database as `flowengine top` shows it, in a limited number of rows."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from flowengine.engine import Engine, RunInfo
from flowengine.engine.presentation import outstanding
from flowengine.engine.results import duration
from flowengine.engine.schedule_records import ScheduleInfo
from flowengine.engine.workers import WorkerInfo
from flowengine.evaluator.states import RunState
from flowengine.scheduling.states import ScheduleState

_SELDOM = 5.0  #: seconds between two reads of the catalogue and of the schedules
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
    idle: str = ""  #: why no tick is expected: paused, or stopped
    problems: int = 0  #: of its newest version


@dataclass(frozen=True, slots=True)
class Overview:
    """The content of the screen at one moment."""

    now: int
    runs: Sequence[RunInfo] = ()
    workers: Sequence[WorkerInfo] = ()
    workflows: Sequence[WorkflowRow] = ()
    states: Counter[str] = field(default_factory=Counter)


class OverviewReader:
    """Reads what is shown. Workflows and schedules, of which there may be many, more seldom."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine, self._clock = engine, clock
        self._read_at = -math.inf
        self._published: list[WorkflowRow] = []

    def read(self, part: str, workflow: str) -> Overview:
        """Read the workflows with `part` in their name; the runs of these, or of one workflow."""
        if self._clock() - self._read_at >= _SELDOM:
            self._published = _published(self._engine)
            self._read_at = self._clock()
        return _overview(self._engine, part, workflow, self._published)


def _published(engine: Engine) -> list[WorkflowRow]:
    """Return the workflows of the catalogue, and those of schedules."""
    found = engine.catalogue.list()
    problems = {info.name: len(info.problems) for info in found}
    schedules: dict[str, list[ScheduleInfo]] = {info.name: [] for info in found}
    for schedule in engine.schedules.list():
        schedules.setdefault(schedule.workflow, []).append(schedule)
    return [_scheduled(name, own, problems.get(name, 0)) for name, own in schedules.items()]


def _scheduled(name: str, schedules: Sequence[ScheduleInfo], problems: int) -> WorkflowRow:
    """Return a workflow with the next tick of its schedules; a paused one keeps its own."""
    active = [each for each in schedules if each.state == ScheduleState.ACTIVE]
    ticks = [each.next_tick for each in active if each.next_tick is not None]
    idle = {each.state for each in schedules} & {ScheduleState.PAUSED, ScheduleState.STOPPED}
    if ticks:
        idle -= {ScheduleState.PAUSED}
    return WorkflowRow(
        name, next_tick=min(ticks, default=None), idle=max(idle, default=""), problems=problems
    )


def _overview(
    engine: Engine, part: str, workflow: str, published: Sequence[WorkflowRow]
) -> Overview:
    newest = engine.list(limit=MAX_RUNS)
    chosen = [run for run in newest if part.lower() in run.workflow.lower()]
    if workflow:
        # Of a workflow that is started seldom, none may be among the newest.
        chosen = list(engine.list(workflow=workflow, limit=MAX_RUNS))
    elif part and not chosen:
        chosen = list(engine.list(named=part, limit=MAX_RUNS))
    workflows = _workflows([*newest, *chosen], published)
    return Overview(
        now=engine.database.now(),
        runs=chosen,
        workers=engine.workers.list(),
        workflows=[row for row in workflows if part.lower() in row.name.lower()],
        states=Counter(run.state for run in newest),
    )


def _workflows(runs: Iterable[RunInfo], published: Iterable[WorkflowRow]) -> list[WorkflowRow]:
    by_id = {run.id: run for run in runs}
    of_name: dict[str, list[RunInfo]] = {}
    for run in by_id.values():
        of_name.setdefault(run.workflow, []).append(run)
    rows = {name: WorkflowRow(name) for name in of_name} | {row.name: row for row in published}
    found = []
    for name, row in sorted(rows.items()):
        states = Counter(run.state for run in of_name.get(name, ()))
        found.append(
            replace(
                row,
                open=sum(count for state, count in states.items() if state not in RunState.FINAL),
                completed=states[RunState.COMPLETED],
                failed=states[RunState.FAILED],
                last=max((run.created for run in of_name.get(name, ())), default=0),
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
    """Return the texts of a workflow's row: name, runs by state, the next tick, the last start."""
    return (
        row.name,
        str(row.open or ""),
        str(row.completed or ""),
        str(row.failed or ""),
        _next(row, now),
        _about(now - row.last) if row.last else "",
    )


def _next(row: WorkflowRow, now: int) -> str:
    if row.problems:
        return "1 problem" if row.problems == 1 else f"{row.problems} problems"
    if row.idle or row.next_tick is None:
        return row.idle
    return "now" if row.next_tick <= now else f"in {_about(row.next_tick - now)}"


def _about(milliseconds: int) -> str:
    """Return a duration in its largest unit: the table has little room on 80 columns."""
    return " ".join(duration(milliseconds).split()[:2])


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

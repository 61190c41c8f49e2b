"""Recovery queries: what a crash left behind. Each uses an index and has a bounded result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields

from sqlalchemy import and_, bindparam, exists, func, or_, select, text, update

from flowengine.evaluator import RunState, TaskDefinition, TaskState
from flowengine.store.parts import MANY, Part
from flowengine.store.records import WorkerIdentity
from flowengine.store.tables import (
    FACT_IS_WAITING,
    REPORTED,
    RUN_HAS_ALARM,
    TASK_IS_PENDING,
    TASK_IS_REPORTED,
    TASK_IS_RETRY,
    TASK_IS_RUNNING,
    FactRow,
    JoinRow,
    RunRow,
    TaskRow,
)

table = TaskRow.__table__  # type: ignore[attr-defined]
run = RunRow.__table__  # type: ignore[attr-defined]
join = JoinRow.__table__  # type: ignore[attr-defined]
fact = FactRow.__table__  # type: ignore[attr-defined]

TIMEOUT = "Timeout"  #: the type of the error of a try that sent no heartbeat in time


@dataclass(frozen=True, slots=True)
class HeldTask:
    """A running task and its holder."""

    task_id: str
    lease: int
    run_id: str
    name: str
    task_list: str
    step_path: str
    timeout_ms: int | None
    boot_id: str
    pid: int | None
    runs_once: bool
    activity: int = 0  #: when it was claimed or sent a heartbeat; 0: not read


def held_task(task: TaskDefinition) -> HeldTask:
    """Return a claimed task as recovery reads it."""
    return HeldTask(
        task.uuid,
        task.lease,
        task.workflow_id,
        task.name,
        task.task_list_name,
        task.step_path,
        task.timeout_ms,
        task.boot_id,
        task.pid,
        task.runs_once,
    )


_RENAMED = {"task_id": "uuid", "task_list": "task_list_name"}
_HELD = [table.c[_RENAMED.get(field.name, field.name)] for field in fields(HeldTask)]
# A loose index scan, one list after the other: DISTINCT would read all pending tasks.
_LISTS = text(
    "WITH RECURSIVE lists(name) AS ("
    "SELECT min(task_list_name) FROM flowengine_task WHERE state = 'pending' "
    "UNION ALL SELECT (SELECT min(task_list_name) FROM flowengine_task "
    "WHERE state = 'pending' AND task_list_name > lists.name) "
    "FROM lists WHERE lists.name IS NOT NULL"
    ") SELECT name FROM lists WHERE name IS NOT NULL"
)
_IN_ORDER = (
    select(table.c.run_id, table.c.name)
    .where(and_(TASK_IS_PENDING, table.c.task_list_name == bindparam("task_list")))
    .order_by(table.c.rank, table.c.due, table.c.position)
)
_IS_DUE = _IN_ORDER.where(
    table.c.due <= bindparam("now"), table.c.name.in_(bindparam("names", expanding=True))
).limit(1)
# Reports of a join are left to its last report, or to its chord's callback, for some seconds. A
# loose index scan finds each run once, however many reports it has.
_WITH_REPORTS = text(
    "WITH RECURSIVE runs(id) AS ("
    f"SELECT min(run_id) FROM flowengine_task WHERE {REPORTED} "
    "UNION ALL SELECT (SELECT min(run_id) FROM flowengine_task "
    f"WHERE {REPORTED} AND run_id > runs.id) FROM runs WHERE runs.id IS NOT NULL"
    f") SELECT id FROM runs WHERE id IS NOT NULL LIMIT {MANY}"
)
_REPORTED_ALONE = (
    select(table.c.run_id)
    .where(and_(table.c.run_id == bindparam("run"), TASK_IS_REPORTED, table.c.join_id.is_(None)))
    .limit(1)
)
_REPORTED_TOGETHER = (
    select(join.c.run_id)
    .where(
        and_(
            join.c.run_id == bindparam("run"),
            or_(
                and_(join.c.remaining <= 0, join.c.updated <= bindparam("waited")),
                join.c.updated <= bindparam("forgotten"),
            ),
            exists().where(
                and_(
                    table.c.run_id == join.c.run_id, table.c.join_id == join.c.id, TASK_IS_REPORTED
                )
            ),
        )
    )
    .limit(1)
)
_HELD_BY = select(*_HELD).where(
    and_(
        TASK_IS_RUNNING,
        table.c.boot_id.in_(bindparam("boots", expanding=True)),
    )
)
# A loose index scan, one boot after the other.
_HOLDERS = text(
    "WITH RECURSIVE boots(id) AS ("
    "SELECT min(boot_id) FROM flowengine_task WHERE state = 'running' AND boot_id > '' "
    "UNION ALL SELECT (SELECT min(boot_id) FROM flowengine_task "
    "WHERE state = 'running' AND boot_id > boots.id) FROM boots WHERE boots.id IS NOT NULL"
    ") SELECT id FROM boots WHERE id IS NOT NULL"
)
_LAST_SIGN = select(func.max(table.c.activity)).where(
    and_(TASK_IS_RUNNING, table.c.boot_id == bindparam("boot"))
)
_HELD_SINCE = _HELD_BY.where(
    table.c.pid == bindparam("process"), table.c.started < bindparam("before")
)
_OVERDUE = (
    select(*_HELD)
    .where(
        and_(
            TASK_IS_RUNNING,
            table.c.timeout_ms.is_not(None),
            table.c.activity + table.c.timeout_ms < bindparam("now"),
        )
    )
    .limit(MANY)
)


_TIMED_OUT = select(table.c.uuid).where(
    and_(
        table.c.uuid.in_(bindparam("ids", expanding=True)),
        table.c.state == TaskState.FAILED,
        table.c.error.startswith(bindparam("beginning"), autoescape=False),
    )
)
_WITH_FACTS = select(fact.c.run_id).where(FACT_IS_WAITING).distinct().limit(MANY)
_FIRST = _IN_ORDER.limit(MANY)
_ALARMS = select(run.c.id, run.c.alarm).where(
    and_(
        RUN_HAS_ALARM,
        run.c.state == RunState.RUNNING,
        run.c.alarm.startswith(bindparam("beginning")),
    )
)
# Only on a running run: nothing would clear the alarm of one that has ended.
_SET_ALARM = (
    update(run)
    .where(and_(run.c.id == bindparam("of"), run.c.state == RunState.RUNNING))
    .values(alarm=bindparam("text"))
)
# No wake-up was sent for a retry: it was not due when it was committed.
_DUE_RETRIES = (
    update(table)
    .where(and_(TASK_IS_RETRY, table.c.due <= bindparam("now")))
    .values(published=bindparam("now"))
    .returning(table.c.task_list_name)
)


class RecoveryQueries(Part):
    """Finds what a crash left behind, for the recovery jobs."""

    def runs_with_facts(self) -> list[str]:
        """Return runs that have unconsumed facts."""
        return list(self._session.execute(_WITH_FACTS).scalars())

    def pending_lists(self) -> list[str]:
        """Return the task lists that have pending tasks."""
        return list(self._session.execute(_LISTS).scalars())

    def due_lists(self, names: Sequence[str], now: int) -> list[str]:
        """Return the task lists that have a due task of those facets."""
        values = {"names": list(names), "now": now}
        return [
            task_list
            for task_list in self.pending_lists()
            if self._session.execute(_IS_DUE, {"task_list": task_list, **values}).first()
        ]

    def unevaluated_runs(self, now: int, max_wait_ms: int) -> list[str]:
        """Return runs with recorded reports that no process is about to evaluate."""
        values = {"waited": now - max_wait_ms, "forgotten": now - 60_000}
        return [
            run_id
            for run_id in self._session.execute(_WITH_REPORTS).scalars().all()
            if self._session.execute(_REPORTED_ALONE, {"run": run_id}).first()
            or self._session.execute(_REPORTED_TOGETHER, {"run": run_id, **values}).first()
        ]

    def held_by_boots(self, boot_ids: Sequence[str]) -> list[HeldTask]:
        return [
            HeldTask(*row) for row in self._session.execute(_HELD_BY, {"boots": list(boot_ids)})
        ]

    def last_signs(self, without: Collection[str]) -> dict[str, int]:
        """Return the last sign of life of each holder by boot id, except for these boots.

        A claim or a heartbeat of a task is a sign of life.
        """
        holders = self._session.execute(_HOLDERS).scalars().all()
        signs = {
            boot_id: self._session.execute(_LAST_SIGN, {"boot": boot_id}).scalar()
            for boot_id in holders
            if boot_id not in without
        }
        return {boot_id: at for boot_id, at in signs.items() if at is not None}

    def held_since(self, identity: WorkerIdentity, before: int) -> list[HeldTask]:
        """Return the tasks that one process has held since before that time."""
        values = {"boots": [identity.boot_id], "process": identity.pid, "before": before}
        return [HeldTask(*row) for row in self._session.execute(_HELD_SINCE, values)]

    def overdue(self, now: int) -> list[HeldTask]:
        """Return running tasks that have shown no activity for longer than their timeout."""
        return [HeldTask(*row) for row in self._session.execute(_OVERDUE, {"now": now})]

    def timed_out(self, task_ids: Sequence[str]) -> set[str]:
        """Return which of these tasks were ended because they showed no activity."""
        if not task_ids:
            return set()
        values = {"ids": list(task_ids), "beginning": f'{{"type":"{TIMEOUT}"'}
        return set(self._session.execute(_TIMED_OUT, values).scalars())

    def pending_names(self) -> set[tuple[str, str, str]]:
        """Return run, facet and task list of the first pending tasks of each list.

        A task that no worker serves stays, and so moves to the front of its list.
        """
        return {
            (run_id, name, task_list)
            for task_list in self.pending_lists()
            for run_id, name in self._session.execute(_FIRST, {"task_list": task_list})
        }

    def alarms(self, beginning: str) -> dict[str, str]:
        """Return the alarms of running runs that begin with this text."""
        return {row[0]: row[1] for row in self._session.execute(_ALARMS, {"beginning": beginning})}

    def set_alarms(self, alarms: Mapping[str, str | None]) -> None:
        """Set the alarms of these runs; None clears one."""
        rows = [{"of": run_id, "text": text} for run_id, text in sorted(alarms.items())]
        self._session.execute(_SET_ALARM, rows)

    def take_due_retries(self, now: int) -> dict[str, int]:
        """Mark retries that have become due as published; return their number by task list."""
        return dict(Counter(self._session.execute(_DUE_RETRIES, {"now": now}).scalars()))

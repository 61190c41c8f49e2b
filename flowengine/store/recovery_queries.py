"""Recovery queries: what a crash left behind. Each uses an index and has a bounded result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from sqlalchemy import Select, TextClause, select

from flowengine.evaluator import TaskDefinition, TaskState
from flowengine.evaluator.records import ACTIVATION, ID_PREFIX, id_within
from flowengine.store import codec
from flowengine.store.claims import ORDER, WorkerIdentity
from flowengine.store.parts import MANY, Part, statement
from flowengine.store.schedule_tables import SCHEDULE_IS_DUE
from flowengine.store.tables import (
    FACT_IS_WAITING,
    RUN_HAS_ALARM,
    RUN_IS_QUEUED,
    TASK_IS_PENDING,
    TASK_IS_REPORTED,
    TASK_IS_RETRY,
    TASK_IS_RUNNING,
    TASK_IS_WAITING,
    TIMER_IS_SET,
    TaskRow,
)

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
    step_id: str = ""
    activity: int = 0  #: when it was claimed or sent a heartbeat; 0: not read


_held_values = attrgetter(
    *("uuid", "lease", "workflow_id", "name", "task_list_name"),
    *("step_path", "timeout_ms", "boot_id", "pid", "runs_once", "step_id"),
)


def held_task(task: TaskDefinition) -> HeldTask:
    """Return a claimed task as recovery reads it."""
    return HeldTask(*_held_values(task))


_RENAMED = {"task_id": "uuid", "task_list": "task_list_name"}
_HELD = [TaskRow.__table__.c[_RENAMED.get(field.name, field.name)] for field in fields(HeldTask)]


def _held(condition: str, *lists: str) -> Select[Any]:
    return select(*_HELD).where(statement(f"{TASK_IS_RUNNING} AND {condition}", *lists))


def _distinct(column: str, condition: str, limit: str = "") -> TextClause:
    """Return a loose index scan, one value after the other: DISTINCT would read all tasks."""
    return statement(
        f"WITH RECURSIVE found(value) AS (SELECT min({column}) FROM flowengine_task "
        f"WHERE {condition} UNION ALL SELECT (SELECT min({column}) FROM flowengine_task "
        f"WHERE {condition} AND {column} > found.value) FROM found WHERE found.value IS NOT NULL"
        f") SELECT value FROM found WHERE value IS NOT NULL{limit}"
    )


_LISTS = _distinct("task_list_name", TASK_IS_PENDING)
_HOLDERS = _distinct("boot_id", f"{TASK_IS_RUNNING} AND boot_id > ''")
_FIRST = (
    f"FROM flowengine_task WHERE {TASK_IS_PENDING} AND task_list_name = :task_list{{}} "
    f"ORDER BY {ORDER} LIMIT {{}}"
)
_PENDING = statement("SELECT run_id, name " + _FIRST.format("", MANY))
_OF_LIST = f"{TASK_IS_PENDING} AND task_list_name = :task_list"
_FIRST_OF_TENANTS = statement(
    "WITH RECURSIVE found(tenant) AS (SELECT min(tenant) FROM flowengine_task "
    f"WHERE {_OF_LIST} UNION ALL SELECT (SELECT min(tenant) FROM flowengine_task "
    f"WHERE {_OF_LIST} AND tenant > found.tenant) FROM found WHERE found.tenant IS NOT NULL) "
    "SELECT t.run_id, t.name FROM found JOIN flowengine_task t ON t.uuid = ("
    f"SELECT uuid FROM flowengine_task WHERE {_OF_LIST} AND tenant = found.tenant "
    f"ORDER BY {ORDER} LIMIT 1) LIMIT {MANY}"
)
_IS_OF_THEM = "(name IN :names OR short_name IN :names)"  # a poller may serve a short name
_IS_DUE = statement("SELECT 1 " + _FIRST.format(f" AND due <= :now AND {_IS_OF_THEM}", 1), "names")
# Reports of a join are left to its last report, or to its chord's callback, for some seconds.
_WITH_REPORTS = _distinct("run_id", TASK_IS_REPORTED, " LIMIT :limit")
_REPORTED_ALONE = statement(
    f"SELECT 1 FROM flowengine_task WHERE run_id = :run AND {TASK_IS_REPORTED} "
    "AND join_id IS NULL LIMIT 1"
)
_REPORTED_TOGETHER = statement(
    "SELECT 1 FROM flowengine_join j WHERE j.run_id = :run "
    "AND (j.remaining <= 0 AND j.updated <= :waited OR j.updated <= :forgotten) "
    "AND EXISTS (SELECT 1 FROM flowengine_task "
    f"WHERE run_id = j.run_id AND join_id = j.id AND {TASK_IS_REPORTED}) LIMIT 1"
)
_HELD_BY = _held("boot_id IN :boots", "boots")
_HELD_BY_ONE = (
    f"SELECT {', '.join(column.name for column in _HELD)} FROM flowengine_task "
    f"WHERE {TASK_IS_RUNNING} AND boot_id = %s"
)
_HELD_SINCE = _held("boot_id = :boot AND pid = :process AND started < :before")
_IS_OVERDUE = "timeout_ms IS NOT NULL AND activity + timeout_ms < {}"
_OVERDUE = _held(_IS_OVERDUE.format(":now")).limit(MANY)
_LAST_SIGN = statement(
    f"SELECT max(activity) FROM flowengine_task WHERE {TASK_IS_RUNNING} AND boot_id = :boot"
)
_TIMED_OUT = statement(
    f"SELECT uuid, error FROM flowengine_task WHERE uuid IN :ids "
    f"AND state = '{TaskState.FAILED}' AND error IS NOT NULL",
    "ids",
)
_CANCELED = select(*_HELD).where(
    statement(f"uuid IN :ids AND state = '{TaskState.CANCELED}'", "ids")
)
_WITH_FACTS = statement(
    " UNION ".join(
        f"SELECT * FROM (SELECT DISTINCT run_id FROM flowengine_fact WHERE {FACT_IS_WAITING} "
        f"AND run_id >= {start} ORDER BY run_id LIMIT :limit) found"
        for start in (":first", "''")
    )
)
_ALARMS = statement(
    f"SELECT id, alarm FROM flowengine_run WHERE {RUN_HAS_ALARM} "
    "AND finished IS NULL AND alarm LIKE :beginning"
)
# Only on an open run: nothing would clear the alarm of one that has ended.
_SET_ALARM = statement(
    "UPDATE flowengine_run SET alarm = :text WHERE id = :run AND finished IS NULL"
)
_BEGIN_ALARM = statement(
    "UPDATE flowengine_run SET alarm = :text WHERE id IN :ids AND finished IS NULL "
    "AND (alarm IS NULL OR alarm NOT LIKE :beginning) RETURNING id, workflow",
    "ids",
)
# No wake-up was sent for a retry: it was not due when it was committed.
_DUE_RETRIES = statement(
    f"UPDATE flowengine_task SET published = :now WHERE {TASK_IS_RETRY} AND due <= :now "
    "RETURNING task_list_name"
)
_OTHER_DUE_RETRIES = statement(
    f"UPDATE flowengine_task SET published = :now WHERE {TASK_IS_RETRY} AND due <= :now "
    "AND task_list_name NOT IN :lists RETURNING task_list_name",
    "lists",
)
_MAKE_DUE = statement(
    "UPDATE flowengine_task SET due = :now, published = :now "
    f"WHERE run_id IN :ids AND data_type = '{ACTIVATION}' AND state = 'pending' AND due > :now "
    "RETURNING task_list_name",
    "ids",
)
_DUE_TIMERS = statement(
    "SELECT t.id, t.run_id, t.step_id, s.key, t.kind FROM flowengine_timer t "
    f"JOIN flowengine_step s ON s.id = t.step_id WHERE {TIMER_IS_SET} AND t.due <= :now "
    f"ORDER BY t.due LIMIT {MANY}"
)
# One statement for both: each recovery pass runs it, also without timers and schedules.
_DUE_BY_CLOCK = statement(
    f"SELECT EXISTS (SELECT 1 FROM flowengine_timer WHERE {TIMER_IS_SET} AND due <= :now), "
    f"EXISTS (SELECT 1 FROM flowengine_schedule WHERE {SCHEDULE_IS_DUE} AND due <= :now)"
)
# Each condition is that of a partial index, so an idle pass of recovery is this one statement.
_HAS_WORK = "SELECT " + " OR ".join(
    f"EXISTS (SELECT 1 FROM flowengine_{table} WHERE {condition})"
    for table, condition in (
        ("task", TASK_IS_PENDING),
        ("task", TASK_IS_WAITING),
        ("task", TASK_IS_REPORTED),
        ("task", f"{TASK_IS_RUNNING} AND {_IS_OVERDUE.format('%s')}"),
        ("fact", FACT_IS_WAITING),
        ("timer", f"{TIMER_IS_SET} AND due <= %s"),
        ("schedule", f"{SCHEDULE_IS_DUE} AND due <= %s"),
        ("run", RUN_IS_QUEUED),
        ("run", f"{RUN_HAS_ALARM} AND finished IS NULL"),
    )
)
_FIRE = statement("UPDATE flowengine_timer SET fired = :now WHERE id IN :ids", "ids")
# The ids of a run's timers begin like its id: a range of the primary key.
_TIMERS = statement(
    "SELECT step_id, due FROM flowengine_timer WHERE id >= :first AND id < :last "
    f"AND run_id = :run AND {TIMER_IS_SET}"
)


class RecoveryQueries(Part):
    """Finds what a crash left behind, for the recovery jobs."""

    def runs_with_facts(self, limit: int = MANY, first: str = "") -> list[str]:
        """Return runs that have unconsumed facts: from the id `first` on, and then from the start.

        With a random `first`, none is left out of every page, however many there are.
        """
        found = self._session.execute(_WITH_FACTS, {"limit": limit, "first": first}).scalars()
        return sorted(found, key=lambda run_id: (run_id < first, run_id))[:limit]

    def has_work(self, now: int) -> bool:
        """Whether a job of recovery that reads rows would find any; what it finds may be empty."""
        return bool(self._session.rows(_HAS_WORK, (now, now, now))[0][0])

    def due_by_clock(self, now: int) -> tuple[bool, bool]:
        """Return whether timers are due, and whether schedules are."""
        timers, schedules = self._session.execute(_DUE_BY_CLOCK, {"now": now}).one()
        return bool(timers), bool(schedules)

    def fire_due_timers(self, now: int) -> set[str]:
        """Record that timers are due, as facts of their runs; return these runs. Idempotent."""
        due = self._session.execute(_DUE_TIMERS, {"now": now}).all()
        for timer_id, run_id, step_id, step_key, kind in due:
            fact = {"step_id": step_id, "step_key": step_key, "kind": kind}
            fact_id = id_within(timer_id, "fired")
            self._session.inbox.add_fact(fact_id, run_id, "TimerFired", fact, now)
        if due:
            self._session.execute(_FIRE, {"ids": [row[0] for row in due], "now": now})
        return {row.run_id for row in due}

    def timers(self, run_id: str) -> dict[str, int]:
        """Return when the timers of a run are due, by the id of the step that waits."""
        first = run_id[:ID_PREFIX]
        values = {"run": run_id, "first": first, "last": f"{first}g"}
        return dict(self._session.execute(_TIMERS, values).all())

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

    def unevaluated_runs(self, now: int, max_wait_ms: int, limit: int = MANY) -> list[str]:
        """Return runs with recorded reports that no process is about to evaluate."""
        values = {"waited": now - max_wait_ms, "forgotten": now - 60_000}
        return [
            run_id
            for run_id in self._session.execute(_WITH_REPORTS, {"limit": limit}).scalars().all()
            if self._session.execute(_REPORTED_ALONE, {"run": run_id}).first()
            or self._session.execute(_REPORTED_TOGETHER, {"run": run_id, **values}).first()
        ]

    def held_by_boot(self, boot_id: str) -> list[HeldTask]:
        """Return the same for one boot; also outside a transaction."""
        return [HeldTask(*row) for row in self._session.rows(_HELD_BY_ONE, (boot_id,))]

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
        values = {"boot": identity.boot_id, "process": identity.pid, "before": before}
        return [HeldTask(*row) for row in self._session.execute(_HELD_SINCE, values)]

    def overdue(self, now: int) -> list[HeldTask]:
        """Return running tasks that have shown no activity for longer than their timeout."""
        return [HeldTask(*row) for row in self._session.execute(_OVERDUE, {"now": now})]

    def timed_out(self, task_ids: Sequence[str]) -> set[str]:
        """Return which of these tasks were ended because they showed no activity."""
        if not task_ids:
            return set()
        rows = self._session.execute(_TIMED_OUT, {"ids": list(task_ids)})
        return {task_id for task_id, error in rows if codec.load(error)["type"] == TIMEOUT}

    def canceled(self, task_ids: Sequence[str]) -> list[HeldTask]:
        """Return those of these tasks that were canceled."""
        if not task_ids:
            return []
        rows = self._session.execute(_CANCELED, {"ids": list(task_ids)})
        return [HeldTask(*row) for row in rows]

    def pending_names(self) -> set[tuple[str, str, str]]:
        """Return run, facet and task list of the first pending tasks of each list.

        A task that no worker serves stays, and so moves to the front of its tenant's tasks: the
        first one of each tenant is among them.
        """
        return {
            (run_id, name, task_list)
            for task_list in self.pending_lists()
            for query in (_PENDING, _FIRST_OF_TENANTS)
            for run_id, name in self._session.execute(query, {"task_list": task_list})
        }

    def alarms(self, beginning: str) -> dict[str, str]:
        """Return the alarms of running runs that begin with this text."""
        rows = self._session.execute(_ALARMS, {"beginning": f"{beginning}%"})
        return {run_id: alarm for run_id, alarm in rows}  # noqa: C416 - rows are not tuples

    def begin_alarms(
        self, text: str, run_ids: Sequence[str], beginning: str
    ) -> list[tuple[str, str]]:
        """Set an alarm on the open runs that have none with this beginning.

        Returns their ids and workflows: of several processes that set it, one finds the run.
        """
        rows = self._in_portions(_BEGIN_ALARM, run_ids, text=text, beginning=f"{beginning}%")
        return [(row.id, row.workflow) for row in rows]

    def set_alarms(self, alarms: Mapping[str, str | None]) -> None:
        """Set the alarms of these runs; None clears one."""
        rows = [{"run": run_id, "text": text} for run_id, text in sorted(alarms.items())]
        self._session.execute(_SET_ALARM, rows)

    def make_activations_due(self, run_ids: Sequence[str], now: int) -> dict[str, int]:
        """Make the waiting activations of runs due; return their number by task list."""
        rows = self._in_portions(_MAKE_DUE, run_ids, now=now)
        return dict(Counter(row.task_list_name for row in rows))

    def take_due_retries(self, now: int, excluded: Collection[str] = ()) -> dict[str, int]:
        """Mark retries that have become due as published; return their number by task list.

        Those on the `excluded` lists are left to others.
        """
        if not excluded:
            found = self._session.execute(_DUE_RETRIES, {"now": now})
        else:
            values = {"now": now, "lists": sorted(excluded)}
            found = self._session.execute(_OTHER_DUE_RETRIES, values)
        return dict(Counter(found.scalars()))

"""What the watchdog looks for: each a query with an index and a bounded answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, bindparam, exists, func, or_, select, text, update

from flowengine.evaluator import RunState, TaskDefinition, TaskState
from flowengine.store.claims import WorkerIdentity
from flowengine.store.joins import table as join
from flowengine.store.rows import MANY
from flowengine.store.runs import table as run
from flowengine.store.tables import (
    REPORTED,
    RUN_HAS_ALARM,
    TASK_IS_PENDING,
    TASK_IS_REPORTED,
    TASK_IS_RETRY,
    TASK_IS_RUNNING,
)
from flowengine.store.tasks import table

TIMEOUT = "Timeout"  #: the type of the error that ends a try for its silence


@dataclass(frozen=True, slots=True)
class HeldTask:
    """A running task as its holder last left it."""

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
    """A claimed task, for those who look after it."""
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


_HELD: tuple[Any, ...] = (
    table.c.uuid,
    table.c.lease,
    table.c.run_id,
    table.c.name,
    table.c.task_list_name,
    table.c.step_path,
    table.c.timeout_ms,
    table.c.boot_id,
    table.c.pid,
    table.c.runs_once,
    table.c.activity,
)
# One list after the other, by the index: to read them off the tasks all would be read.
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
# Reports of a join are left to its last one, or to its chord's callback, for a while. Each run
# that has some is found by the index, however many it has.
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
# One boot after the other, by the index.
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


def pending_lists(connection: Connection) -> list[str]:
    """Return the task lists that have something pending."""
    return list(connection.execute(_LISTS).scalars())


def due_lists(connection: Connection, names: Sequence[str], now: int) -> list[str]:
    """Return the task lists that have a due task of those names."""
    values = {"names": list(names), "now": now}
    return [
        task_list
        for task_list in pending_lists(connection)
        if connection.execute(_IS_DUE, {"task_list": task_list, **values}).first()
    ]


def unevaluated_runs(connection: Connection, now: int, patience_ms: int) -> list[str]:
    """Return runs with reports that nobody took in, and nobody is about to."""
    values = {"waited": now - patience_ms, "forgotten": now - 60_000}
    return [
        run_id
        for run_id in connection.execute(_WITH_REPORTS).scalars().all()
        if connection.execute(_REPORTED_ALONE, {"run": run_id}).first()
        or connection.execute(_REPORTED_TOGETHER, {"run": run_id, **values}).first()
    ]


def held_by_boots(connection: Connection, boot_ids: Sequence[str]) -> list[HeldTask]:
    return [HeldTask(*row) for row in connection.execute(_HELD_BY, {"boots": list(boot_ids)})]


def last_signs(connection: Connection, without: Collection[str]) -> dict[str, int]:
    """Return when those who hold something last claimed or beat for it, by boot id, without these.

    Who has nothing any more when we look closer is not among them.
    """
    holders = connection.execute(_HOLDERS).scalars().all()
    signs = {
        boot_id: connection.execute(_LAST_SIGN, {"boot": boot_id}).scalar()
        for boot_id in holders
        if boot_id not in without
    }
    return {boot_id: at for boot_id, at in signs.items() if at is not None}


def held_since(connection: Connection, identity: WorkerIdentity, before: int) -> list[HeldTask]:
    """Return what one process has held since before that time."""
    values = {"boots": [identity.boot_id], "process": identity.pid, "before": before}
    return [HeldTask(*row) for row in connection.execute(_HELD_SINCE, values)]


def overdue(connection: Connection, now: int) -> list[HeldTask]:
    """Return running tasks that have shown no activity for longer than their timeout."""
    return [HeldTask(*row) for row in connection.execute(_OVERDUE, {"now": now})]


def timed_out(connection: Connection, task_ids: Sequence[str]) -> set[str]:
    """Return which of these tasks were ended because they showed no activity."""
    if not task_ids:
        return set()
    values = {"ids": list(task_ids), "beginning": f'{{"type":"{TIMEOUT}"'}
    return set(connection.execute(_TIMED_OUT, values).scalars())


_FIRST = _IN_ORDER.limit(MANY)
_ALARMS = select(run.c.id, run.c.alarm).where(
    and_(
        RUN_HAS_ALARM,
        run.c.state == RunState.RUNNING,
        run.c.alarm.startswith(bindparam("beginning")),
    )
)
# Only while it runs: from one that has ended meanwhile nobody would take it off.
_SET_ALARM = (
    update(run)
    .where(and_(run.c.id == bindparam("of"), run.c.state == RunState.RUNNING))
    .values(alarm=bindparam("text"))
)


def pending_names(connection: Connection) -> set[tuple[str, str, str]]:
    """Return which runs wait for which facets of which lists: of each list those next in line.

    What nobody serves does not leave its place, and comes to the front.
    """
    return {
        (run_id, name, task_list)
        for task_list in pending_lists(connection)
        for run_id, name in connection.execute(_FIRST, {"task_list": task_list})
    }


def alarms(connection: Connection, beginning: str) -> dict[str, str]:
    """Return the alarms of live runs that begin so."""
    return {row[0]: row[1] for row in connection.execute(_ALARMS, {"beginning": beginning})}


def set_alarms(connection: Connection, alarms: Mapping[str, str | None]) -> None:
    """Put these alarms on their runs; None takes one off."""
    rows = [{"of": run_id, "text": text} for run_id, text in sorted(alarms.items())]
    connection.execute(_SET_ALARM, rows)


#: Nobody has rung for a retry: when it was committed it was not due.
_DUE_RETRIES = (
    update(table)
    .where(and_(TASK_IS_RETRY, table.c.due <= bindparam("now")))
    .values(published=bindparam("now"))
    .returning(table.c.task_list_name)
)


def take_due_retries(connection: Connection, now: int) -> dict[str, int]:
    """Return how many retries have become due in each list since the last look."""
    return dict(Counter(connection.execute(_DUE_RETRIES, {"now": now}).scalars()))

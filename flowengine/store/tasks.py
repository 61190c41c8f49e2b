"""Tasks: claimed by one, reported once.

A claim raises the lease, a report names it. Every statement here says from which state
and under which lease it may act, so whoever comes late, twice or back from the dead
changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, func, or_, select, update

from flowengine.evaluator import Step, TaskDefinition, TaskState
from flowengine.evaluator.happenings import Failed, Lost, Succeeded, TryEnded, TryOutcome
from flowengine.store import codec, joins, payloads, steps
from flowengine.store.rows import MANY, insert_or_ignore, portions
from flowengine.store.tables import (
    TASK_IS_PENDING,
    TASK_IS_REPORTED,
    TASK_IS_RUNNING,
    TaskRow,
)

table = TaskRow.__table__  # type: ignore[attr-defined]
_step = steps.table


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who claims."""

    server_id: str = ""
    boot_id: str = ""
    pid: int | None = None


# --- creation ---


def insert(connection: Connection, created: Sequence[TaskDefinition], first: int) -> None:
    """Insert new tries, numbered from `first` in the order of their creation."""
    insert_or_ignore(
        connection,
        table,
        [
            {
                "uuid": task.uuid,
                "run_id": task.workflow_id,
                "step_id": task.step_id,
                "step_key": task.step_key,
                "step_path": task.step_path,
                "program_hash": task.flow_id,
                "name": task.name,
                "short_name": task.name.rpartition(".")[2],
                "task_list_name": task.task_list_name,
                "data_type": task.data_type,
                "position": first + offset,
                "try_number": task.try_number,
                "losses": task.losses,
                "lease": 0,
                "state": TaskState.PENDING,
                "rank": -task.priority,
                "due": task.due,
                "timeout_ms": task.timeout_ms,
                "join_id": task.join_id,
                "taken_in": False,
                "created": task.created,
                "updated": task.updated,
            }
            for offset, task in enumerate(created)
        ],
    )


# --- claiming ---

_ORDER = (table.c.rank, table.c.due, table.c.position)
_CLAIMABLE = (
    select(table.c.uuid)
    .where(
        and_(
            TASK_IS_PENDING,
            table.c.task_list_name == bindparam("task_list"),
            table.c.due <= bindparam("now"),
            or_(
                table.c.name.in_(bindparam("names", expanding=True)),
                table.c.short_name.in_(bindparam("short_names", expanding=True)),
            ),
        )
    )
    .order_by(*_ORDER)
    .limit(bindparam("most"))
    .with_for_update(skip_locked=True)  # SQLite has one writer and leaves this out
)


def _claim_where(condition: Any) -> Any:
    return (
        update(table)
        .where(condition, TASK_IS_PENDING)
        .values(
            state=TaskState.RUNNING,
            lease=table.c.lease + 1,
            server_id=bindparam("server"),
            boot_id=bindparam("boot"),
            pid=bindparam("process"),
            started=bindparam("now"),
            activity=bindparam("now"),
            updated=bindparam("now"),
        )
        .returning(*table.c)
    )


# A CTE that locks is evaluated once. A plain subquery PostgreSQL may evaluate for every row
# it looks at, and each time the limit begins anew: the claim would take all there is.
_CLAIM = _claim_where(table.c.uuid.in_(select(_CLAIMABLE.cte("claimable").c.uuid)))
_CLAIM_ONE = _claim_where(table.c.uuid == bindparam("task"))


def claim(
    connection: Connection,
    names: Sequence[str],
    task_list: str,
    claimant: Claimant,
    now: int,
    most: int = 1,
) -> list[TaskDefinition]:
    """Take the most urgent due tasks of those names; nobody else gets them.

    A name without a dot also takes tasks of any namespace with that short name.
    """
    values = {
        "task_list": task_list,
        "names": list(names),
        "short_names": [name for name in names if "." not in name],
        "most": most,
        "now": now,
        **_who(claimant),
    }
    rows = connection.execute(_CLAIM, values).all()
    return _claimed(connection, sorted(rows, key=lambda row: (row.rank, row.due, row.position)))


_LISTS = select(table.c.task_list_name).where(table.c.state == TaskState.PENDING).distinct()


def pending_lists(connection: Connection) -> list[str]:
    """Return the task lists that have something pending."""
    return sorted(connection.execute(_LISTS).scalars())


def claim_one(
    connection: Connection, task_id: str, claimant: Claimant, now: int
) -> TaskDefinition | None:
    """Take this task, if it is still to be had."""
    values = {"task": task_id, "now": now, **_who(claimant)}
    found = _claimed(connection, connection.execute(_CLAIM_ONE, values).all())
    return found[0] if found else None


def _who(claimant: Claimant) -> dict[str, Any]:
    return {"server": claimant.server_id, "boot": claimant.boot_id, "process": claimant.pid}


_PARAMS = select(_step.c.id, _step.c.params).where(_step.c.id.in_(bindparam("ids", expanding=True)))


def _claimed(connection: Connection, rows: Sequence[Row[Any]]) -> list[TaskDefinition]:
    if not rows:
        return []
    found = connection.execute(_PARAMS, {"ids": [row.step_id for row in rows]})
    params = {row.id: codec.attributes(row.params) for row in found}
    return [task_of(row, payloads.whole(connection, params[row.step_id])) for row in rows]


def task_of(row: Row[Any], data: dict[str, Any] | None = None) -> TaskDefinition:
    return TaskDefinition(
        uuid=row.uuid,
        name=row.name,
        runner_id=row.server_id or "",
        workflow_id=row.run_id,
        flow_id=row.program_hash,
        step_id=row.step_id,
        state=row.state,
        created=row.created,
        updated=row.updated,
        error=codec.load(row.error),
        task_list_name=row.task_list_name,
        data_type=row.data_type,
        data=data,
        step_key=row.step_key,
        step_path=row.step_path,
        try_number=row.try_number,
        losses=row.losses,
        lease=row.lease,
        due=row.due,
        priority=-row.rank,
        timeout_ms=row.timeout_ms,
        join_id=row.join_id,
    )


# --- what the holder of a lease may do ---

_HELD = and_(
    table.c.uuid == bindparam("task"),
    table.c.lease == bindparam("held"),
    TASK_IS_RUNNING,
)
_RECORD = (
    update(table)
    .where(_HELD)
    .values(
        state=bindparam("to"),
        outcome=bindparam("how"),
        result=bindparam("value"),
        error=bindparam("problem"),
        updated=bindparam("now"),
        activity=bindparam("now"),
    )
    .returning(table.c.join_id)
)
_RELEASE = (
    update(table)
    .where(_HELD)
    .values(state=TaskState.PENDING, lease=table.c.lease + 1, updated=bindparam("now"))
)
_BEAT = update(table).where(_HELD).values(activity=bindparam("now"))


@dataclass(frozen=True, slots=True)
class Recorded:
    """A report that was accepted."""

    left: int | None  #: tasks of its join that are not reported yet; None: it has no join


def record(
    connection: Connection,
    task_id: str,
    lease: int,
    outcome: TryOutcome,
    now: int,
) -> Recorded | None:
    """Record how a try ended, if it is still held under this lease."""
    encoder = codec.Encoder()
    values: dict[str, Any] = {"value": None, "problem": None}
    match outcome:
        case Succeeded(result):
            values |= {"to": TaskState.COMPLETED, "how": "succeeded"}
            values["value"] = encoder.attributes(result) or "{}"
        case Failed(error, retry):
            values |= {"to": TaskState.FAILED, "how": "failed" if retry else "final"}
            values["problem"] = codec.dump(error)
        case Lost(reason):
            values |= {"to": TaskState.FAILED, "how": "lost"}
            values["problem"] = codec.dump({"type": "WorkerLost", "message": reason})
    found = connection.execute(_RECORD, {"task": task_id, "held": lease, "now": now, **values})
    row = found.one_or_none()
    if row is None:
        return None
    payloads.save_payloads(connection, encoder.payloads, now)
    return Recorded(joins.count_down(connection, row.join_id, now) if row.join_id else None)


def release(connection: Connection, task_id: str, lease: int, now: int) -> bool:
    """Hand a task back unfinished; it may be claimed again at once."""
    return bool(connection.execute(_RELEASE, {"task": task_id, "held": lease, "now": now}).rowcount)


def beat(connection: Connection, task_id: str, lease: int, now: int) -> bool:
    """Note a sign of life; False tells the holder that it has lost the task."""
    return bool(connection.execute(_BEAT, {"task": task_id, "held": lease, "now": now}).rowcount)


# --- what the evaluator takes in ---

_REPORTED = (
    select(table, *(column.label(f"step_{column.name}_") for column in _step.c))
    .join(_step, _step.c.id == table.c.step_id)
    .where(
        and_(
            table.c.run_id == bindparam("run"),
            TASK_IS_REPORTED,
            ~table.c.taken_in,  # for the index's second column
        )
    )
    # Unordered: to find the first of thousands in order, all would be read and sorted each time.
    .limit(MANY)
)
_TAKE_IN = update(table).where(table.c.uuid == bindparam("task")).values(taken_in=True)
_CANCEL = (
    update(table)
    .where(
        and_(
            table.c.step_id.in_(bindparam("ids", expanding=True)),
            table.c.state.in_(sorted(TaskState.OPEN)),
        )
    )
    .values(
        state=TaskState.CANCELED,
        lease=table.c.lease + 1,
        taken_in=True,
        updated=bindparam("now"),
    )
    .returning(table.c.join_id)
)


@dataclass(frozen=True, slots=True)
class Reported:
    """A report the evaluator has not taken in, with its step."""

    task_id: str
    step: Step
    ended: TryEnded


class _StepColumns:
    """The step's columns of a joined row, under their own names."""

    def __init__(self, row: Row[Any]) -> None:
        self._row = row

    def __getattr__(self, name: str) -> Any:
        return getattr(self._row, f"step_{name}_")


def reported(connection: Connection, run_id: str) -> list[Reported]:
    """Return reports that wait to be taken in: all, or as many as one commit should hold."""
    rows = connection.execute(_REPORTED, {"run": run_id}).all()
    return [
        Reported(
            row.uuid,
            steps.step_of(_StepColumns(row)),  # type: ignore[arg-type]
            TryEnded(row.step_id, row.step_key, row.try_number, row.losses, _outcome(row)),
        )
        for row in sorted(rows, key=lambda row: row.position)
    ]


def _outcome(row: Row[Any]) -> TryOutcome:
    if row.outcome == "succeeded":
        return Succeeded(codec.attributes(row.result))
    error = codec.load(row.error)
    if row.outcome == "lost":
        return Lost(error["message"])
    return Failed(error, retry=row.outcome == "failed")


def take_in(connection: Connection, task_ids: Sequence[str]) -> None:
    if task_ids:
        connection.execute(_TAKE_IN, [{"task": task_id} for task_id in task_ids])


def cancel_open(connection: Connection, step_ids: Sequence[str], now: int) -> None:
    """Stop and fence what is still open for these steps."""
    if not step_ids:
        return
    stopped = connection.execute(_CANCEL, {"ids": list(step_ids), "now": now}).scalars()
    for join_id, count in sorted(Counter(join_id for join_id in stopped if join_id).items()):
        joins.count_down(connection, join_id, now, count)


# --- for those who look ---

_OF_RUN = (
    select(table, _step.c.params)
    .join(_step, _step.c.id == table.c.step_id)
    .where(table.c.run_id == bindparam("run"))
    .order_by(table.c.position)
)


def load_run(connection: Connection, run_id: str) -> list[TaskDefinition]:
    """Return all tries of a run in the order of their creation, with their data."""
    return [
        task_of(row, payloads.whole(connection, codec.attributes(row.params)))
        for row in connection.execute(_OF_RUN, {"run": run_id})
    ]


_TRIES = (
    select(
        *(
            table.c[name]
            for name in ("step_id", "try_number", "losses", "state", "task_list_name", "updated")
        )
    )
    .where(table.c.step_id.in_(bindparam("ids", expanding=True)))
    .order_by(table.c.position)
)


def last_tries(connection: Connection, step_ids: Sequence[str]) -> dict[str, Row[Any]]:
    """Return the last try of each of these steps, without its data."""
    found = {}
    for part in portions(step_ids):
        for row in connection.execute(_TRIES, {"ids": list(part)}):
            found[row.step_id] = row  # in order: the last wins
    return found


_REPORTED_COUNTS = (
    select(table.c.run_id, func.count())
    .where(and_(table.c.run_id.in_(bindparam("runs", expanding=True)), TASK_IS_REPORTED))
    .where(table.c.state == TaskState.COMPLETED)
    .group_by(table.c.run_id)
)


def reported_counts(connection: Connection, run_ids: Sequence[str]) -> dict[str, int]:
    """Return of each run how many results are recorded and not taken in yet."""
    if not run_ids:
        return {}
    found = connection.execute(_REPORTED_COUNTS, {"runs": list(run_ids)})
    return {row[0]: row[1] for row in found}

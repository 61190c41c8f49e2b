"""Reports: how tries ended, recorded once.

Every statement here says from which state and under which lease it may act, so whoever
comes late, twice or back from the dead changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, func, select, update

from flowengine.evaluator import Step, TaskState
from flowengine.evaluator.happenings import Failed, Lost, Succeeded, TryEnded, TryOutcome
from flowengine.evaluator.states import tasks_that_may_become
from flowengine.store import codec, joins, payloads, steps
from flowengine.store.rows import MANY
from flowengine.store.tables import TASK_IS_REPORTED, TASK_IS_RUNNING
from flowengine.store.tasks import table

_step = steps.table

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
            table.c.state.in_(tasks_that_may_become(TaskState.CANCELED)),
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

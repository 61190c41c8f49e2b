"""Tasks: one row per try of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select

from flowengine.evaluator import TaskDefinition, TaskState
from flowengine.store import codec, payloads, steps
from flowengine.store.rows import insert_or_ignore, portions
from flowengine.store.tables import TaskRow

table = TaskRow.__table__  # type: ignore[attr-defined]
_step = steps.table


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
                "runs_once": task.runs_once,
                "join_id": task.join_id,
                "taken_in": False,
                "created": task.created,
                "updated": task.updated,
            }
            for offset, task in enumerate(created)
        ],
    )


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
        boot_id=row.boot_id or "",
        pid=row.pid,
        runs_once=row.runs_once,
        join_id=row.join_id,
    )


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

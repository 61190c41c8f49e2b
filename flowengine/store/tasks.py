"""Tasks: one row per try of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select

from flowengine.evaluator import TaskDefinition
from flowengine.store import codec, payloads, steps
from flowengine.store.rows import portions
from flowengine.store.tables import TaskRow

table = TaskRow.__table__  # type: ignore[attr-defined]
_step = steps.table


#: What a record of a task is made of, in the order in which it is read.
COLUMNS = (
    *("uuid", "name", "server_id", "run_id", "program_hash", "step_id", "state", "created"),
    *("updated", "error", "task_list_name", "data_type", "step_key", "step_path", "try_number"),
    *("losses", "lease", "due", "rank", "timeout_ms", "boot_id", "pid", "runs_once", "join_id"),
    *("position", "limit_key"),
)

#: PostgreSQL: the given row `g` names the task `t`, which is still held. In one condition about
#: both: told the state by itself, the planner may walk all that is running.
IS_HELD = "t.uuid = g.uuid AND CASE t.lease WHEN g.lease THEN t.state = 'running' END"


def task_from(row: Sequence[Any], data: dict[str, Any] | None) -> TaskDefinition:
    """Read a task from its columns."""
    return TaskDefinition(
        uuid=row[0],
        name=row[1],
        runner_id=row[2] or "",
        workflow_id=row[3],
        flow_id=row[4],
        step_id=row[5],
        state=row[6],
        created=row[7],
        updated=row[8],
        error=codec.load(row[9]),
        task_list_name=row[10],
        data_type=row[11],
        data=data,
        step_key=row[12],
        step_path=row[13],
        try_number=row[14],
        losses=row[15],
        lease=row[16],
        due=row[17],
        priority=-row[18],
        timeout_ms=row[19],
        boot_id=row[20] or "",
        pid=row[21],
        runs_once=bool(row[22]),
        join_id=row[23],
        position=row[24],
        circuit=circuit_of(row[25]),
    )


_CIRCUIT = "circuit:"


def limit_key(circuit: str) -> str | None:
    """How a task's row names what must let it through."""
    return _CIRCUIT + circuit if circuit else None


def circuit_of(limit_key: str | None) -> str:
    return limit_key.removeprefix(_CIRCUIT) if limit_key else ""


# --- for those who look ---

_OF_RUN = (
    select(*(table.c[name] for name in COLUMNS), _step.c.params)
    .join(_step, _step.c.id == table.c.step_id)
    .where(table.c.run_id == bindparam("run"))
    .order_by(table.c.position)
)


def load_run(connection: Connection, run_id: str) -> list[TaskDefinition]:
    """Return all tries of a run in the order of their creation, with their data."""
    return [
        task_from(row, payloads.whole(connection, codec.attributes(row.params)))
        for row in connection.execute(_OF_RUN, {"run": run_id})
    ]


_TRIES = (
    select(
        *(
            table.c[name]
            for name in (
                *("step_id", "try_number", "losses", "state", "task_list_name", "updated"),
                *("lease", "due", "limit_key"),
            )
        )
    )
    .where(table.c.run_id == bindparam("run"))
    .where(table.c.step_id.in_(bindparam("ids", expanding=True)))
    .order_by(table.c.position)
)


def last_tries(connection: Connection, run_id: str, step_ids: Sequence[str]) -> dict[str, Row[Any]]:
    """Return the last try of each of these steps of a run, without its data."""
    found = {}
    for part in portions(step_ids):
        for row in connection.execute(_TRIES, {"run": run_id, "ids": list(part)}):
            found[row.step_id] = row  # in order: the last wins
    return found

"""Tasks: one row per try of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select

from flowengine.evaluator import TaskDefinition
from flowengine.store import codec, payloads, steps
from flowengine.store.records import TASK_COLUMNS, task_from
from flowengine.store.rows import portions
from flowengine.store.tables import TaskRow

table = TaskRow.__table__  # type: ignore[attr-defined]
_step = steps.table


#: PostgreSQL: the given row `g` names the task `t`, which is still held. In one condition about
#: both: told the state by itself, the planner may walk all that is running.
IS_HELD = "t.uuid = g.uuid AND CASE t.lease WHEN g.lease THEN t.state = 'running' END"


# --- for those who look ---

_OF_RUN = (
    select(*(table.c[name] for name in TASK_COLUMNS), _step.c.params)
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

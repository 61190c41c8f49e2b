"""Steps: rows to records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, case, func, select

from flowengine.evaluator import Step
from flowengine.evaluator.states import ObjectType, StepState
from flowengine.store.executors import Executor
from flowengine.store.records import STEP_COLUMNS, step_from
from flowengine.store.rows import portions
from flowengine.store.tables import StepRow

table = StepRow.__table__  # type: ignore[attr-defined]

_BY_ID = select(table).where(table.c.id == bindparam("step"))
_OF_RUN = (
    select(table)
    .where(and_(table.c.run_id == bindparam("run"), ~table.c.superseded))
    .order_by(table.c.created, table.c.position)
)


_SELECTED = ", ".join(f"s.{name}" for name in STEP_COLUMNS)
_BY_KEYS = (
    f"SELECT {_SELECTED} FROM json_to_recordset(%s::json) AS w(run_id text, key text) "
    "JOIN flowengine_step s ON s.run_id = w.run_id AND s.key = w.key WHERE NOT s.superseded",
    # The order of a cross join is kept: each wanted row is found by the index.
    f"SELECT {_SELECTED} FROM json_each(?) w CROSS JOIN flowengine_step s "
    "ON s.run_id = json_extract(w.value, '$.run_id') AND s.key = json_extract(w.value, '$.key') "
    "WHERE NOT s.superseded",
)


def load(executor: Executor, wanted: Mapping[str, Iterable[str]]) -> dict[str, dict[str, Step]]:
    """Return the rows of those keys, by run; those that a run does not have are left out."""
    found: dict[str, dict[str, Step]] = {run_id: {} for run_id in wanted}
    pairs = [{"run_id": run_id, "key": key} for run_id, keys in wanted.items() for key in keys]
    for row in executor.rows(_BY_KEYS[executor.is_sqlite], (json.dumps(pairs),)):
        step = step_from(row)
        found[step.run_id][step.key] = step
    return found


def load_by_id(connection: Connection, step_id: str) -> Step | None:
    row = connection.execute(_BY_ID, {"step": step_id}).one_or_none()
    return step_of(row) if row else None


def load_run(connection: Connection, run_id: str) -> list[Step]:
    """Return all steps of a run, in the order of their creation."""
    return [step_of(row) for row in connection.execute(_OF_RUN, {"run": run_id})]


# --- for those who look ---

_PROGRESS = (
    select(
        table.c.run_id,
        func.count().label("steps"),
        func.sum(case((table.c.state.in_(sorted(StepState.FINAL)), 1), else_=0)).label("ended"),
    )
    .where(
        and_(
            table.c.run_id.in_(bindparam("runs", expanding=True)),
            table.c.object_type.in_(sorted(ObjectType.STEPS)),
            ~table.c.superseded,
        )
    )
    .group_by(table.c.run_id)
)
_SKELETON = select(
    *(
        table.c[name]
        for name in ("id", "key", "parent", "position", "object_type", "state", "item_count")
    )
).where(and_(table.c.run_id == bindparam("run"), ~table.c.superseded))
_FLESH = select(
    *(table.c[name] for name in ("id", "path", "facet_name", "error", "created", "updated"))
).where(table.c.id.in_(bindparam("ids", expanding=True)))


def progress(connection: Connection, run_ids: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return of each run how many of its steps have ended, and how many there are so far."""
    found = {}
    for part in portions(run_ids):
        for row in connection.execute(_PROGRESS, {"runs": list(part)}):
            found[row.run_id] = (int(row.ended), int(row.steps))
    return found


def skeleton(connection: Connection, run_id: str) -> Sequence[Row[Any]]:
    """Return all rows of a run, with little more than how they hang together."""
    return connection.execute(_SKELETON, {"run": run_id}).all()


def flesh(connection: Connection, step_ids: Sequence[str]) -> dict[str, Row[Any]]:
    """Return what people want to know of these steps; their values stay where they are."""
    found = {}
    for part in portions(step_ids):
        for row in connection.execute(_FLESH, {"ids": list(part)}):
            found[row.id] = row
    return found


def step_of(row: Row[Any]) -> Step:
    return step_from([getattr(row, name) for name in STEP_COLUMNS])

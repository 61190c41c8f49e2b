"""Steps: read queries."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Row, and_, bindparam, case, func, select

from flowengine.evaluator import Step
from flowengine.evaluator.states import ObjectType, StepState
from flowengine.store.backend import Dialect
from flowengine.store.parts import Part, portions
from flowengine.store.records import STEP_COLUMNS, step_from
from flowengine.store.tables import StepRow

table = StepRow.__table__  # type: ignore[attr-defined]
_columns = [table.c[name] for name in STEP_COLUMNS]
_BY_ID = select(*_columns).where(table.c.id == bindparam("step"))
_OF_RUN = (
    select(*_columns)
    .where(and_(table.c.run_id == bindparam("run"), ~table.c.superseded))
    .order_by(table.c.created, table.c.position)
)
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
_DETAILS = select(
    *(table.c[name] for name in ("id", "path", "facet_name", "error", "created", "updated"))
).where(table.c.id.in_(bindparam("ids", expanding=True)))


@functools.cache
def _by_keys(sql: Dialect) -> str:
    return (
        f"SELECT {', '.join(f's.{name}' for name in STEP_COLUMNS)} FROM {sql.PAIRS} "
        f"{sql.JOIN} flowengine_step s ON s.run_id = {sql.PAIR_RUN} AND s.key = {sql.PAIR_KEY} "
        "WHERE NOT s.superseded"
    )


class Steps(Part):
    """Reads steps."""

    def load(self, wanted: Mapping[str, Iterable[str]]) -> dict[str, dict[str, Step]]:
        """Return the steps with these keys by run, without those that a run does not have."""
        found: dict[str, dict[str, Step]] = {run_id: {} for run_id in wanted}
        pairs = [{"run_id": run_id, "key": key} for run_id, keys in wanted.items() for key in keys]
        for row in self._session.rows(_by_keys(self._session.dialect), (json.dumps(pairs),)):
            step = step_from(row)
            found[step.run_id][step.key] = step
        return found

    def by_id(self, step_id: str) -> Step | None:
        row = self._session.execute(_BY_ID, {"step": step_id}).one_or_none()
        return step_from(row) if row else None

    def of_run(self, run_id: str) -> list[Step]:
        """Return all steps of a run, in the order of their creation."""
        return [step_from(row) for row in self._session.execute(_OF_RUN, {"run": run_id})]

    def progress(self, run_ids: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Return for each run how many of its steps have ended, and how many it has so far."""
        found = {}
        for part in portions(run_ids):
            for row in self._session.execute(_PROGRESS, {"runs": list(part)}):
                found[row.run_id] = (int(row.ended), int(row.steps))
        return found

    def skeleton(self, run_id: str) -> Sequence[Row[Any]]:
        """Return all rows of a run with a few short columns: the shape of its tree."""
        return self._session.execute(_SKELETON, {"run": run_id}).all()

    def details(self, step_ids: Sequence[str]) -> dict[str, Row[Any]]:
        """Return names, errors and times of these steps, without their values."""
        found = {}
        for part in portions(step_ids):
            for row in self._session.execute(_DETAILS, {"ids": list(part)}):
                found[row.id] = row
        return found

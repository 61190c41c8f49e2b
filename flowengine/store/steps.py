"""Steps: read queries."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Row

from flowengine.evaluator import Step
from flowengine.evaluator.states import ObjectType, StepState
from flowengine.store.backend import in_dialect
from flowengine.store.parts import Part, quoted, statement
from flowengine.store.records import STEP_COLUMNS, step_from

_COLUMNS = ", ".join(STEP_COLUMNS)
_BY_ID = statement(f"SELECT {_COLUMNS} FROM flowengine_step WHERE id = :step")
_OF_RUN = statement(
    f"SELECT {_COLUMNS} FROM flowengine_step WHERE run_id = :run AND NOT superseded "
    "ORDER BY created, position"
)
_PROGRESS = statement(
    "SELECT run_id, count(*) AS steps, "
    f"sum(CASE WHEN state IN ({quoted(StepState.FINAL)}) THEN 1 ELSE 0 END) AS ended "
    "FROM flowengine_step WHERE run_id IN :ids AND NOT superseded "
    f"AND object_type IN ({quoted(ObjectType.STEPS)}) GROUP BY run_id",
    "ids",
)
_SKELETON = statement(
    "SELECT id, key, parent, position, object_type, state, item_count FROM flowengine_step "
    "WHERE run_id = :run AND NOT superseded"
)
_DETAILS = statement(
    "SELECT id, path, facet_name, error, created, updated FROM flowengine_step WHERE id IN :ids",
    "ids",
)
_BY_KEYS = (
    f"SELECT {', '.join(f's.{name}' for name in STEP_COLUMNS)} FROM {{PAIRS}} "
    "{JOIN} flowengine_step s ON s.run_id = {PAIR_RUN} AND s.key = {PAIR_KEY} "
    "WHERE NOT s.superseded"
)


class Steps(Part):
    """Reads steps."""

    def load(self, wanted: Mapping[str, Iterable[str]]) -> dict[str, dict[str, Step]]:
        """Return the steps with these keys by run, without those that a run does not have."""
        found: dict[str, dict[str, Step]] = {run_id: {} for run_id in wanted}
        pairs = [{"run_id": run_id, "key": key} for run_id, keys in wanted.items() for key in keys]
        text = in_dialect(_BY_KEYS, self._session.dialect)
        for row in self._session.rows(text, (json.dumps(pairs),)):
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
        rows = self._in_portions(_PROGRESS, run_ids)
        return {row.run_id: (int(row.ended), int(row.steps)) for row in rows}

    def skeleton(self, run_id: str) -> Sequence[Row[Any]]:
        """Return all rows of a run with a few short columns: the shape of its tree."""
        return self._session.execute(_SKELETON, {"run": run_id}).all()

    def details(self, step_ids: Sequence[str]) -> dict[str, Row[Any]]:
        """Return names, errors and times of these steps, without their values."""
        return {row.id: row for row in self._in_portions(_DETAILS, step_ids)}

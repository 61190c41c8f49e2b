"""Tasks: read queries. One row per try of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, bindparam, select

from flowengine.evaluator import EventDefinition, TaskDefinition
from flowengine.evaluator.states import event_state
from flowengine.store import codec
from flowengine.store.parts import Part, portions
from flowengine.store.records import TASK_COLUMNS, task_from
from flowengine.store.tables import EventRow, StepRow, TaskRow

table = TaskRow.__table__  # type: ignore[attr-defined]
_step = StepRow.__table__  # type: ignore[attr-defined]
_event = EventRow.__table__  # type: ignore[attr-defined]
_OF_RUN = (
    select(*(table.c[name] for name in TASK_COLUMNS), _step.c.params)
    .join(_step, _step.c.id == table.c.step_id)
    .where(table.c.run_id == bindparam("run"))
    .order_by(table.c.position)
)
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
_EVENTS = (
    select(_event, _step.c.state.label("step_state"), _step.c.params)
    .join(_step, _step.c.id == _event.c.step_id)
    .where(_event.c.run_id == bindparam("run"))
    .order_by(_event.c.created, _step.c.path)
)


class Tasks(Part):
    """Reads tasks, and the events whose tries they are."""

    def of_run(self, run_id: str) -> list[TaskDefinition]:
        """Return all tasks of a run in the order of their creation, with their data."""
        resolved = self._session.payloads.resolved
        return [
            task_from(row, resolved(codec.attributes(row.params)))
            for row in self._session.execute(_OF_RUN, {"run": run_id}).all()
        ]

    def last_tries(self, run_id: str, step_ids: Sequence[str]) -> dict[str, Row[Any]]:
        """Return the last try of each of these steps of a run, without its data."""
        found = {}
        for part in portions(step_ids):
            for row in self._session.execute(_TRIES, {"run": run_id, "ids": list(part)}):
                found[row.step_id] = row  # in order: the last wins
        return found

    def events_of_run(self, run_id: str) -> list[EventDefinition]:
        """Return the events of a run; their state follows from that of step and task."""
        rows = self._session.execute(_EVENTS, {"run": run_id}).all()
        tries = self.last_tries(run_id, [row.step_id for row in rows])
        return [
            EventDefinition(
                id=row.id,
                step_id=row.step_id,
                workflow_id=row.run_id,
                state=event_state(row.step_state, tries[row.step_id].state),
                event_type=row.event_type,
                payload=self._session.payloads.resolved(codec.attributes(row.params)),
            )
            for row in rows
        ]

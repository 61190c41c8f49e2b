"""Tasks: read queries. One row per try of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row

from flowengine.evaluator import EventDefinition, TaskDefinition
from flowengine.evaluator.states import event_state
from flowengine.store import codec
from flowengine.store.parts import Part, statement
from flowengine.store.records import TASK_COLUMNS, task_from

_OF_RUN = statement(
    f"SELECT {', '.join(f't.{name}' for name in TASK_COLUMNS)}, s.params FROM flowengine_task t "
    "JOIN flowengine_step s ON s.id = t.step_id WHERE t.run_id = :run ORDER BY t.position"
)
_TRIES = statement(
    "SELECT step_id, try_number, losses, state, task_list_name, updated, lease, due, limit_key "
    "FROM flowengine_task WHERE run_id = :run AND step_id IN :ids ORDER BY position",
    "ids",
)
_EVENTS = statement(
    # Every column by name: after a migration that adds one, a prepared `*` would fail.
    "SELECT e.id, e.step_id, e.run_id, e.event_type, s.state AS step_state, s.params "
    "FROM flowengine_event e JOIN flowengine_step s ON s.id = e.step_id "
    "WHERE e.run_id = :run ORDER BY e.created, s.path"
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
        rows = self._in_portions(_TRIES, step_ids, run=run_id)
        return {row.step_id: row for row in rows}  # in order: the last wins

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

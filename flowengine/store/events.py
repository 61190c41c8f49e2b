"""Events: what outside work the steps of a run asked for, and how far each has come."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, select

from flowengine.evaluator import EventDefinition
from flowengine.evaluator.states import event_state
from flowengine.store import codec, payloads, steps, tasks
from flowengine.store.tables import EventRow

table = EventRow.__table__  # type: ignore[attr-defined]
_step = steps.table
_OF_RUN = (
    select(table, _step.c.state.label("step_state"), _step.c.params)
    .join(_step, _step.c.id == table.c.step_id)
    .where(table.c.run_id == bindparam("run"))
    .order_by(table.c.created, _step.c.path)
)


def load_run(connection: Connection, run_id: str) -> list[EventDefinition]:
    """Return the events of a run."""
    rows = connection.execute(_OF_RUN, {"run": run_id}).all()
    tries = tasks.last_tries(connection, run_id, [row.step_id for row in rows])
    return [
        EventDefinition(
            id=row.id,
            step_id=row.step_id,
            workflow_id=row.run_id,
            state=event_state(row.step_state, tries[row.step_id].state),
            event_type=row.event_type,
            payload=payloads.whole(connection, codec.attributes(row.params)),
        )
        for row in rows
    ]

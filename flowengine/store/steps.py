"""Steps and events: rows to records and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, case, func, select, update

from flowengine.evaluator import EventDefinition, Step
from flowengine.evaluator.states import ObjectType, StepState
from flowengine.store import codec
from flowengine.store.rows import insert_or_ignore, portions
from flowengine.store.tables import EventRow, StepRow

table = StepRow.__table__  # type: ignore[attr-defined]
_event = EventRow.__table__  # type: ignore[attr-defined]

_BY_KEY = select(table).where(
    and_(
        table.c.run_id == bindparam("run"),
        table.c.key.in_(bindparam("keys", expanding=True)),
        ~table.c.superseded,
    )
)
_BY_ID = select(table).where(table.c.id == bindparam("step"))
_OF_RUN = (
    select(table)
    .where(and_(table.c.run_id == bindparam("run"), ~table.c.superseded))
    .order_by(table.c.created, table.c.position)
)
_UPDATE = update(table).where(table.c.id == bindparam("of"))
_UPDATE_EVENT = update(_event).where(_event.c.id == bindparam("of"))


def load_by_key(connection: Connection, run_id: str, keys: Iterable[str]) -> dict[str, Step | None]:
    """Return the rows of those keys; None for a key that the run has no row of."""
    found: dict[str, Step | None] = dict.fromkeys(keys)
    for part in portions(sorted(found)):
        for row in connection.execute(_BY_KEY, {"run": run_id, "keys": list(part)}):
            found[row.key] = step_of(row)
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


# --- rows ---


def step_of(row: Row[Any]) -> Step:
    return Step(
        id=row.id,
        run_id=row.run_id,
        key=row.key,
        path=row.path,
        object_type=row.object_type,
        address=row.address,
        parent=row.parent,
        index=row.position,
        generation=row.generation,
        facet_name=row.facet_name,
        state=row.state,
        params=codec.attributes(row.params),
        returns=codec.attributes(row.returns),
        error=codec.load(row.error),
        waiting=row.waiting,
        remaining=row.remaining,
        item_count=row.item_count,
        next_index=row.next_index,
        failure=codec.load(row.failure),
        yields=codec.yields(row.yields),
        created=row.created,
        updated=row.updated,
    )


def insert(connection: Connection, steps: Sequence[Step], encoder: codec.Encoder) -> None:
    insert_or_ignore(
        connection,
        table,
        [
            {
                "id": step.id,
                "run_id": step.run_id,
                "key": step.key,
                "generation": step.generation,
                "superseded": False,
                "path": step.path,
                "object_type": step.object_type,
                "address": step.address,
                "facet_name": step.facet_name,
                "parent": step.parent,
                "position": step.index,
                "created": step.created,
                **_mutable(step, encoder),
            }
            for step in steps
        ],
    )


def save(connection: Connection, steps: Sequence[Step], encoder: codec.Encoder) -> None:
    if steps:
        connection.execute(_UPDATE, [{"of": s.id, **_mutable(s, encoder)} for s in steps])


def _mutable(step: Step, encoder: codec.Encoder) -> dict[str, Any]:
    return {
        "state": step.state,
        "params": encoder.attributes(step.params),
        "returns": encoder.attributes(step.returns),
        "error": codec.dump(step.error) if step.error else None,
        "waiting": step.waiting,
        "remaining": step.remaining,
        "item_count": step.item_count,
        "next_index": step.next_index,
        "failure": codec.dump(step.failure) if step.failure else None,
        "yields": encoder.yields(step.yields),
        "updated": step.updated,
    }


def insert_events(connection: Connection, events: Sequence[EventDefinition], now: int) -> None:
    insert_or_ignore(
        connection,
        _event,
        [
            {
                "id": event.id,
                "run_id": event.workflow_id,
                "step_id": event.step_id,
                "event_type": event.event_type,
                "state": event.state,
                "created": now,
                "updated": now,
            }
            for event in events
        ],
    )


def save_events(connection: Connection, events: Sequence[EventDefinition], now: int) -> None:
    if events:
        rows = [{"of": e.id, "state": e.state, "updated": now} for e in events]
        connection.execute(_UPDATE_EVENT, rows)

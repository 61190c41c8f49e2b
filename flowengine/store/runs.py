"""Runs, their inbox of facts and their history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, insert, or_, select, update

from flowengine.evaluator import RunView
from flowengine.evaluator.states import RunState
from flowengine.store import codec, payloads
from flowengine.store.rows import MANY, insert_or_ignore
from flowengine.store.tables import FACT_IS_WAITING, FactRow, HistoryRow, RunRow

table = RunRow.__table__  # type: ignore[attr-defined]
_fact = FactRow.__table__  # type: ignore[attr-defined]
_history = HistoryRow.__table__  # type: ignore[attr-defined]

_LOCK = select(table).where(table.c.id == bindparam("run")).with_for_update()
_GET = select(table).where(table.c.id == bindparam("run"))
_BEGINNING = (
    select(table).where(table.c.id.startswith(bindparam("beginning"), autoescape=False)).limit(2)
)
_BY_KEY = select(table).where(
    and_(
        table.c.tenant == bindparam("tenant"),
        table.c.workflow == bindparam("workflow"),
        table.c.idempotency_key == bindparam("key"),
    )
)
_UPDATE = update(table).where(table.c.id == bindparam("of"))
_FACTS = (
    select(_fact)
    .where(and_(_fact.c.run_id == bindparam("run"), FACT_IS_WAITING))
    .order_by(_fact.c.created, _fact.c.id)
    .limit(MANY)
)
_TAKE_IN = update(_fact).where(_fact.c.id == bindparam("fact")).values(taken_in=True)
_WITH_FACTS = select(_fact.c.run_id).where(FACT_IS_WAITING).distinct().limit(MANY)


def insert_new(connection: Connection, row: Mapping[str, Any]) -> bool:
    """Insert a run; False when its idempotency key is taken."""
    return bool(insert_or_ignore(connection, table, [row]))


def with_key(connection: Connection, tenant: str, workflow: str, key: str) -> Row[Any]:
    values = {"tenant": tenant, "workflow": workflow, "key": key}
    return connection.execute(_BY_KEY, values).one()


def lock(connection: Connection, run_id: str) -> Row[Any] | None:
    """Lock the run's row, and return it as it is once the lock is held."""
    return connection.execute(_LOCK, {"run": run_id}).one_or_none()


def get(connection: Connection, run_id: str) -> Row[Any] | None:
    return connection.execute(_GET, {"run": run_id}).one_or_none()


def beginning_with(connection: Connection, beginning: str) -> Sequence[Row[Any]]:
    """Return the first two runs whose id begins so."""
    return connection.execute(_BEGINNING, {"beginning": beginning}).all()


def newest(
    connection: Connection, *, workflow: str | None, state: str | None, limit: int
) -> Sequence[Row[Any]]:
    statement = select(table).order_by(table.c.created.desc(), table.c.id).limit(limit)
    if workflow:
        statement = statement.where(table.c.workflow == workflow)
    if state:
        statement = statement.where(table.c.state == state)
    return connection.execute(statement).all()


_SUMMARY = select(
    *(
        table.c[name]
        for name in (
            *("id", "workflow", "state", "open_steps", "error", "alarm"),
            *("idempotency_key", "created", "finished"),
        )
    )
).order_by(table.c.created.desc(), table.c.id)


def summaries(
    connection: Connection,
    *,
    states: Iterable[str],
    workflow: str | None,
    before: Row[Any] | None,
    limit: int,
) -> list[Row[Any]]:
    """Return the newest runs, without their values; with `before` those that come after it.

    State by state, for so an index has them in order: a query for all states at once would
    read every run there is and sort them.
    """
    statement = _SUMMARY.limit(limit)
    if workflow:
        statement = statement.where(table.c.workflow.icontains(workflow, autoescape=True))
    if before is not None:
        is_older = table.c.created < before.created
        is_beside = and_(table.c.created == before.created, table.c.id > before.id)
        # The first condition says nothing that the second does not, but it can use the index.
        statement = statement.where(table.c.created <= before.created, or_(is_older, is_beside))
    found: list[Row[Any]] = []
    for state in states:
        found += connection.execute(statement.where(table.c.state == state))
    return sorted(found, key=lambda row: (-row.created, row.id))[:limit]


def view_of(row: Row[Any]) -> RunView:
    return RunView(
        id=row.id,
        workflow=row.workflow,
        program_hash=row.program_hash,
        generation=row.generation,
        state=row.state,
        priority=row.priority,
        open_steps=row.open_steps,
        alarm=row.alarm,
    )


def save(
    connection: Connection,
    view: RunView,
    *,
    revision: int,
    task_count: int,
    encoder: codec.Encoder,
    now: int,
) -> None:
    """Write what the evaluator decided about the run itself."""
    is_final = view.state in RunState.FINAL
    connection.execute(
        _UPDATE,
        {
            "of": view.id,
            "state": view.state,
            "generation": view.generation,
            "open_steps": view.open_steps,
            "outputs": None if view.outputs is None else encoder.attributes(view.outputs) or "{}",
            "error": codec.dump(view.error) if view.error else None,
            "alarm": view.alarm,
            "revision": revision,
            "task_count": task_count,
            "updated": now,
            "finished": now if is_final else None,
        },
    )


def outputs_of(connection: Connection, row: Row[Any]) -> dict[str, Any] | None:
    """Return the outputs of a run, large values read."""
    if row.outputs is None:
        return None
    return payloads.whole(connection, codec.attributes(row.outputs))


# --- facts and history ---


def add_fact(
    connection: Connection,
    fact_id: str,
    run_id: str,
    kind: str,
    payload: Mapping[str, Any],
    now: int,
    *,
    dedupe_key: str | None = None,
    actor: str | None = None,
    reason: str | None = None,
) -> None:
    """Put a fact into a run's inbox, once."""
    row = {
        "id": fact_id,
        "run_id": run_id,
        "kind": kind,
        "dedupe_key": dedupe_key,
        "payload": codec.dump(payload),
        "actor": actor,
        "reason": reason,
        "taken_in": False,
        "created": now,
    }
    insert_or_ignore(connection, _fact, [row])


def waiting_facts(connection: Connection, run_id: str) -> Sequence[Row[Any]]:
    return connection.execute(_FACTS, {"run": run_id}).all()


def take_in_facts(connection: Connection, fact_ids: Sequence[str]) -> None:
    if fact_ids:
        connection.execute(_TAKE_IN, [{"fact": fact_id} for fact_id in fact_ids])


def runs_with_facts(connection: Connection) -> list[str]:
    return list(connection.execute(_WITH_FACTS).scalars())


def write_history(
    connection: Connection, run_id: str, revision: int, summary: Mapping[str, Any], now: int
) -> None:
    row = {"run_id": run_id, "revision": revision, "at": now, "summary": codec.dump(summary)}
    connection.execute(insert(_history), row)

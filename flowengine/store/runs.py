"""Runs and their inbox of facts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, and_, bindparam, or_, select

from flowengine.evaluator import RunView, Step
from flowengine.evaluator.records import Waiter
from flowengine.store import codec, payloads
from flowengine.store.commits import RunHeader
from flowengine.store.executors import Executor
from flowengine.store.records import STEP_COLUMNS, step_from
from flowengine.store.rows import MANY, insert_or_ignore
from flowengine.store.tables import FACT_IS_WAITING, FactRow, RunRow

table = RunRow.__table__  # type: ignore[attr-defined]
_fact = FactRow.__table__  # type: ignore[attr-defined]

_GET = select(table).where(table.c.id == bindparam("run"))
_BEGINNING = (
    select(table).where(table.c.id.startswith(bindparam("beginning"), autoescape=False)).limit(2)
)
_WITH_FACTS = select(_fact.c.run_id).where(FACT_IS_WAITING).distinct().limit(MANY)


_WITH_KEY = (
    "SELECT id FROM flowengine_run WHERE tenant = {p} AND workflow = {p} AND idempotency_key = {p}"
)


def with_key(executor: Executor, tenant: str, workflow: str, key: str) -> str:
    """Return the run that was started with this key."""
    text = _WITH_KEY.format(p="?" if executor.is_sqlite else "%s")
    ((run_id,),) = executor.rows(text, (tenant, workflow, key))
    return str(run_id)


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


#: What the head of a run is made of.
_HEAD = (
    *("id", "workflow", "program_hash", "generation", "state", "priority", "open_steps"),
    *("alarm", "revision", "task_count", "parent_run_id", "parent_step_id", "waiting_step_key"),
)
_SELECTED = ", ".join(f"r.{name}" for name in _HEAD)
_LOCK = (
    f"SELECT {_SELECTED} FROM flowengine_run r WHERE r.id = %s FOR UPDATE",
    f"SELECT {_SELECTED} FROM flowengine_run r WHERE r.id = ?",
)
_HEADS = (
    f"SELECT {_SELECTED} FROM json_array_elements_text(%s::json) AS w(id) "
    "JOIN flowengine_run r ON r.id = w.id",
    f"SELECT {_SELECTED} FROM json_each(?) w CROSS JOIN flowengine_run r ON r.id = w.value",
)


class Look(NamedTuple):
    """How a run stands."""

    id: str
    workflow: str
    state: str
    outputs: str | None
    error: str | None
    alarm: str | None
    created: int
    updated: int
    finished: int | None
    revision: int
    open_steps: int
    idempotency_key: str | None
    priority: int
    labels: str | None
    parent_run_id: str | None


_LOOK = f"SELECT {', '.join(Look._fields)} FROM flowengine_run WHERE id = {{p}}"


def look(executor: Executor, run_id: str) -> Look | None:
    """Return how a run stands, or None."""
    text = _LOOK.format(p="?" if executor.is_sqlite else "%s")
    found = executor.rows(text, (run_id,))
    return Look(*found[0]) if found else None


def lock(executor: Executor, run_id: str, *, wait: bool = True) -> RunHeader | None:
    """Lock the run's row, and return its head as it is once the lock is held.

    Who is not `patient` gets None where somebody else has it.
    """
    text = _LOCK[executor.is_sqlite]
    if not wait and not executor.is_sqlite:
        text += " SKIP LOCKED"
    found = executor.rows(text, (run_id,))
    return _head(found[0]) if found else None


def heads(executor: Executor, run_ids: Iterable[str]) -> dict[str, RunHeader]:
    """Return the heads of these runs as they are now; they may be others in a moment."""
    found = executor.rows(_HEADS[executor.is_sqlite], (json.dumps(sorted(run_ids)),))
    return {row[0]: _head(row) for row in found}


_AROUND_SELECTED = ", ".join(
    [_SELECTED, *(f"{row}.{name}" for row in ("s", "p", "c") for name in STEP_COLUMNS)]
)
_AROUND_JOINED = (
    "LEFT JOIN flowengine_step p ON p.run_id = s.run_id AND p.key = s.parent AND NOT p.superseded "
    "LEFT JOIN flowengine_step c ON c.run_id = p.run_id AND c.key = p.parent AND NOT c.superseded"
)
_AROUND = (
    f"SELECT {_AROUND_SELECTED} FROM json_to_recordset(%s::json) AS w(run_id text, key text) "
    "JOIN flowengine_run r ON r.id = w.run_id "
    "JOIN flowengine_step s ON s.run_id = w.run_id AND s.key = w.key AND NOT s.superseded "
    f"{_AROUND_JOINED}",
    f"SELECT {_AROUND_SELECTED} FROM json_each(?) w "
    "CROSS JOIN flowengine_run r ON r.id = json_extract(w.value, '$.run_id') "
    "CROSS JOIN flowengine_step s ON s.run_id = r.id "
    "AND s.key = json_extract(w.value, '$.key') AND NOT s.superseded "
    f"{_AROUND_JOINED}",
)


def around(
    executor: Executor, wanted: Mapping[str, Iterable[str]]
) -> dict[str, tuple[RunHeader, dict[str, Step]]]:
    """Return of each run its head, and of these steps their rows and the two rows above each.

    One statement, so they are of one moment.
    """
    pairs = [{"run_id": run_id, "key": key} for run_id, keys in wanted.items() for key in keys]
    found: dict[str, tuple[RunHeader, dict[str, Step]]] = {}
    width = len(STEP_COLUMNS)
    for row in executor.rows(_AROUND[executor.is_sqlite], (json.dumps(pairs),)):
        _, rows = found.setdefault(row[0], (_head(row), {}))
        for at in range(len(_HEAD), len(row), width):
            if row[at] is not None and row[at + _KEY] not in rows:
                rows[row[at + _KEY]] = step_from(row[at : at + width])
    return found


_KEY = STEP_COLUMNS.index("key")


def _head(row: Sequence[Any]) -> RunHeader:
    run_id, workflow, program_hash, generation, state, priority, open_steps, alarm = row[:8]
    view = RunView(
        run_id, workflow, program_hash, generation, state, priority, open_steps, alarm=alarm
    )
    if row[12] is not None:
        view.waiter = Waiter(row[10], row[11], row[12])
    return RunHeader(view, row[8], row[9])


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


_FACTS = (
    "SELECT id, kind, payload FROM flowengine_fact WHERE run_id = {p} AND NOT taken_in "
    "ORDER BY created, id LIMIT {p}"
)


def waiting_facts(
    executor: Executor, run_id: str, most: int
) -> list[tuple[str, str, dict[str, Any]]]:
    """Return facts that wait to be taken in, so many at most: id, kind and payload."""
    text = _FACTS.format(p="?" if executor.is_sqlite else "%s")
    return [(row[0], row[1], codec.load(row[2])) for row in executor.rows(text, (run_id, most))]


def runs_with_facts(connection: Connection) -> list[str]:
    return list(connection.execute(_WITH_FACTS).scalars())

"""What the watchdog looks for: each a query with an index and a bounded answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, and_, bindparam, func, select

from flowengine.evaluator import TaskState
from flowengine.store.rows import MANY
from flowengine.store.tasks import table


@dataclass(frozen=True, slots=True)
class Held:
    """A running task as its holder last left it."""

    task_id: str
    lease: int
    run_id: str
    step_path: str
    timeout_ms: int | None


_HELD = (table.c.uuid, table.c.lease, table.c.run_id, table.c.step_path, table.c.timeout_ms)
_DUE = (
    select(table.c.task_list_name, func.count())
    .where(
        and_(
            table.c.state == TaskState.PENDING,
            table.c.due <= bindparam("now"),
            table.c.name.in_(bindparam("names", expanding=True)),
        )
    )
    .group_by(table.c.task_list_name)
)
_UNEVALUATED = (
    select(table.c.run_id)
    .where(and_(table.c.state.in_([TaskState.COMPLETED, TaskState.FAILED]), ~table.c.taken_in))
    .distinct()
    .limit(MANY)
)
_HELD_BY = select(*_HELD).where(
    and_(
        table.c.state == TaskState.RUNNING,
        table.c.boot_id.in_(bindparam("boots", expanding=True)),
    )
)
_OVERDUE = (
    select(*_HELD)
    .where(
        and_(
            table.c.state == TaskState.RUNNING,
            table.c.timeout_ms.is_not(None),
            table.c.activity + table.c.timeout_ms < bindparam("now"),
        )
    )
    .limit(MANY)
)


def due_lists(connection: Connection, names: Sequence[str], now: int) -> dict[str, int]:
    """Return how many due tasks of those names each task list has."""
    found = connection.execute(_DUE, {"names": list(names), "now": now})
    return {row[0]: row[1] for row in found}


def unevaluated_runs(connection: Connection) -> list[str]:
    return list(connection.execute(_UNEVALUATED).scalars())


def held_by_boots(connection: Connection, boot_ids: Sequence[str]) -> list[Held]:
    return [Held(*row) for row in connection.execute(_HELD_BY, {"boots": list(boot_ids)})]


def overdue(connection: Connection, now: int) -> list[Held]:
    """Return running tasks that have shown no activity for longer than their timeout."""
    return [Held(*row) for row in connection.execute(_OVERDUE, {"now": now})]

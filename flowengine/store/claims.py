"""Claims: a task is taken by one.

A claim raises the task's lease, and whatever is said about the task afterwards names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, or_, select, update

from flowengine.evaluator import TaskDefinition, TaskState
from flowengine.store import codec, payloads, steps
from flowengine.store.tables import TASK_IS_PENDING
from flowengine.store.tasks import table, task_of

_step = steps.table


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who claims."""

    server_id: str = ""
    boot_id: str = ""
    pid: int | None = None


_ORDER = (table.c.rank, table.c.due, table.c.position)
_CLAIMABLE = (
    select(table.c.uuid)
    .where(
        and_(
            TASK_IS_PENDING,
            table.c.task_list_name == bindparam("task_list"),
            table.c.due <= bindparam("now"),
            or_(
                table.c.name.in_(bindparam("names", expanding=True)),
                table.c.short_name.in_(bindparam("short_names", expanding=True)),
            ),
        )
    )
    .order_by(*_ORDER)
    .limit(bindparam("most"))
    .with_for_update(skip_locked=True)  # SQLite has one writer and leaves this out
)


def _claim_where(condition: Any) -> Any:
    return (
        update(table)
        .where(condition, TASK_IS_PENDING)
        .values(
            state=TaskState.RUNNING,
            lease=table.c.lease + 1,
            server_id=bindparam("server"),
            boot_id=bindparam("boot"),
            pid=bindparam("process"),
            started=bindparam("now"),
            activity=bindparam("now"),
            updated=bindparam("now"),
        )
        .returning(*table.c)
    )


# A CTE that locks is evaluated once. A plain subquery PostgreSQL may evaluate for every row
# it looks at, and each time the limit begins anew: the claim would take all there is.
_CLAIM = _claim_where(table.c.uuid.in_(select(_CLAIMABLE.cte("claimable").c.uuid)))
_CLAIM_ONE = _claim_where(table.c.uuid == bindparam("task"))


def claim(
    connection: Connection,
    names: Sequence[str],
    task_list: str,
    claimant: Claimant,
    now: int,
    most: int = 1,
) -> list[TaskDefinition]:
    """Take the most urgent due tasks of those names; nobody else gets them.

    A name without a dot also takes tasks of any namespace with that short name.
    """
    values = {
        "task_list": task_list,
        "names": list(names),
        "short_names": [name for name in names if "." not in name],
        "most": most,
        "now": now,
        **_who(claimant),
    }
    rows = connection.execute(_CLAIM, values).all()
    return _claimed(connection, sorted(rows, key=lambda row: (row.rank, row.due, row.position)))


_LISTS = select(table.c.task_list_name).where(table.c.state == TaskState.PENDING).distinct()


def pending_lists(connection: Connection) -> list[str]:
    """Return the task lists that have something pending."""
    return sorted(connection.execute(_LISTS).scalars())


def claim_one(
    connection: Connection, task_id: str, claimant: Claimant, now: int
) -> TaskDefinition | None:
    """Take this task, if it is still to be had."""
    values = {"task": task_id, "now": now, **_who(claimant)}
    found = _claimed(connection, connection.execute(_CLAIM_ONE, values).all())
    return found[0] if found else None


def _who(claimant: Claimant) -> dict[str, Any]:
    return {"server": claimant.server_id, "boot": claimant.boot_id, "process": claimant.pid}


_PARAMS = select(_step.c.id, _step.c.params).where(_step.c.id.in_(bindparam("ids", expanding=True)))


def _claimed(connection: Connection, rows: Sequence[Row[Any]]) -> list[TaskDefinition]:
    if not rows:
        return []
    found = connection.execute(_PARAMS, {"ids": [row.step_id for row in rows]})
    params = {row.id: codec.attributes(row.params) for row in found}
    return [task_of(row, payloads.whole(connection, params[row.step_id])) for row in rows]

"""The names of due tasks of a list, for an agent that handles facets whatever their names.

The list is read in windows, each behind the last one: so a poll costs the same however long the
list is, and every task is looked at after some polls. The index of due tasks has this order.
"""

from __future__ import annotations

from typing import NamedTuple

from flowengine.store.claims import ORDER
from flowengine.store.parts import Part, statement

_WINDOW = 1_000
_COLUMNS = f"{ORDER}, uuid"
_DUE = (
    f"SELECT name, {_COLUMNS} FROM flowengine_task WHERE state = 'pending' "
    f"AND task_list_name = :task_list AND due <= :now {{}}ORDER BY {_COLUMNS} LIMIT {_WINDOW}"
)
_FIRST = statement(_DUE.format(""))
_BEHIND = statement(
    _DUE.format(
        "AND tenant >= :a0 AND (tenant, rank, due, position, uuid) > (:a0, :a1, :a2, :a3, :a4) "
    )
)


class DueNames(NamedTuple):
    names: set[str]
    last: tuple[object, ...] | None  #: the place of the last task; None: the list has ended


class DueTasks(Part):
    def names(self, task_list: str, now: int, after: tuple[object, ...] | None) -> DueNames:
        """Return the names of the tasks in the next window, behind `after`."""
        values: dict[str, object] = {"task_list": task_list, "now": now}
        values |= {f"a{number}": value for number, value in enumerate(after or ())}
        rows = self._session.execute(_BEHIND if after else _FIRST, values).all()
        last = tuple(rows[-1][1:]) if len(rows) == _WINDOW else None
        return DueNames({row[0] for row in rows}, last)

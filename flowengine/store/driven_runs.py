"""The open tasks and timers of one run and its child runs, for a runner that drives it alone."""

from __future__ import annotations

from typing import NamedTuple

from flowengine.store.claims import ORDER
from flowengine.store.parts import Part
from flowengine.store.tables import RUN_IS_CHILD, TIMER_IS_SET

_FAMILY = (
    f"(SELECT %s UNION ALL SELECT id FROM flowengine_run WHERE {RUN_IS_CHILD} AND root_run_id = %s)"
)
_OPEN = (
    "SELECT uuid, task_list_name, state, due, server_id, boot_id, pid, name "
    f"FROM flowengine_task WHERE run_id IN {_FAMILY} "
    f"AND state IN ('pending', 'running', 'waiting') ORDER BY {ORDER}"
)
_TIMERS = f"SELECT kind, due FROM flowengine_timer WHERE {TIMER_IS_SET} AND run_id IN {_FAMILY}"


class OpenTask(NamedTuple):
    uuid: str
    task_list: str
    state: str
    due: int
    server_id: str | None
    boot_id: str | None
    pid: int | None
    name: str  #: of the facet


class DrivenRuns(Part):
    def open_tasks(self, run_id: str) -> list[OpenTask]:
        """Return its pending, running and limited tasks, in the order of claims."""
        return [OpenTask(*row) for row in self._session.rows(_OPEN, (run_id, run_id))]

    def timers(self, run_id: str) -> list[tuple[str, int]]:
        """Return the kind and the due time of each timer that is set."""
        return [(kind, due) for kind, due in self._session.rows(_TIMERS, (run_id, run_id))]

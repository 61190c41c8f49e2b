"""Pass a wake-up on to a worker that has other code.

Workers of two versions may consume one task list. A wake-up for a task that only one of them can
run may be consumed by the other, which claims nothing; without a relay the task would wait for
recovery, and recovery's wake-up may meet the wrong worker again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from flowengine.engine import Engine

#: Seconds for which the code of the other workers is cached: in a fleet of one version the relay
#: costs one query in that time, and none while nothing is consumed.
_CACHED = 1.0


class WakeupRelay:
    """Decides after each wake-up whether tasks are left that only other workers can run."""

    def __init__(self, engine: Engine, server_id: str, names: Callable[[], Sequence[str]]) -> None:
        self._engine, self._server_id, self._names = engine, server_id, names
        self._foreign: dict[str, tuple[float, list[str]]] = {}

    def relay(self, task_list: str, wake: int, hops: int) -> None:
        """Send the wake-up again if it concerns others; `hops` limits how often that is done."""
        if hops > 0 and self._is_for_others(task_list):
            self._engine.notifier.pass_on(task_list, wake, hops - 1)

    def _is_for_others(self, task_list: str) -> bool:
        names = self._foreign_names(task_list)
        if not names:
            return False
        database = self._engine.database
        with database.read() as session:
            due = session.recovery.due_lists(names, session.now())
        return task_list in due

    def _foreign_names(self, task_list: str) -> list[str]:
        """Return the facets that living workers of the list have and this one has not."""
        read_at, names = self._foreign.get(task_list, (-_CACHED, []))
        now = time.monotonic()
        if now - read_at >= _CACHED:
            with self._engine.database.read() as session:
                alive = session.servers.alive()
            theirs = {
                name
                for server in alive
                if server.uuid != self._server_id
                and (not server.topics or task_list in server.topics)
                for name in server.handlers
            }
            names = sorted(theirs.difference(self._names()))
            self._foreign[task_list] = now, names
        return names

"""Recovery by a poller, while nobody else does it.

A pass of recovery wakes workers. A poller without a broker cannot send their messages, so it stands
back while others live that can, and waits longer before it takes their place.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowengine.engine import Engine
from flowengine.engine.recovery import notify_due_tasks, wake_pollers
from flowengine.engine.watchdog import Watchdog
from flowengine.store.servers import ServerDefinition

_PATIENCE = 3.0  # seconds that recovery is late before a poller takes the place of workers


class PollerStandIn:
    def __init__(self) -> None:
        self._is_active, self._has_workers = False, True  #: until a pass has looked

    def watch(self, engine: Engine) -> None:
        stands_back = self._has_workers and not engine.sends_messages
        watchdog = Watchdog(engine, self._wake)
        if (self._is_active and not stands_back) or watchdog.is_late(
            _PATIENCE if stands_back else 0.0
        ):
            self._is_active = watchdog.tick()
            if self._is_active:  # a pass without work wakes nobody
                self._has_workers = _has_workers(watchdog.alive)

    def _wake(self, engine: Engine, alive: Sequence[ServerDefinition]) -> None:
        if _has_workers(alive) and not engine.sends_messages:
            wake_pollers(engine, alive)  # the wake-ups of workers are left to workers
        else:
            notify_due_tasks(engine, alive)


def _has_workers(alive: Sequence[ServerDefinition]) -> bool:
    return any(not server.is_poller for server in alive)

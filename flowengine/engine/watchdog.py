"""The watchdog of a fleet: many may look, one at a time does.

Whoever hears a tick asks for a lease; two beats that tick are one. Of the dead it speaks
only after it has been awake without a break for as long as it takes to be declared dead:
a database that was away, or a laptop that slept, has killed nobody.
"""

from __future__ import annotations

import time
import uuid

from flowengine.engine.engine import Engine
from flowengine.engine.sweeps import (
    hanging_tries,
    lost_servers,
    ring_for_unheard_tasks,
    unevaluated_runs,
    unserved_tasks,
)
from flowengine.store import locks
from flowengine.store.servers import ServerDefinition

LEASE = "watchdog"


class Watchdog:
    """Looks after one database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._awake_since: float | None = None
        self._last_tick = 0.0

    def tick(self) -> bool:
        """Look, unless somebody else just did; tell whether we looked."""
        engine, settings = self._engine, self._engine.settings
        self._stay_awake()
        with engine.database.write() as connection:
            now = engine.database.now(connection)
            # A tick's own owner: a second tick in the same interval is refused, ours too.
            duration = round(settings.watchdog_interval * 900)
            if not locks.acquire(connection, LEASE, uuid.uuid4().hex, duration, now):
                return False
        lost_servers(engine, lambda server: self._is_dead(server, now))
        hanging_tries(engine)
        unevaluated_runs(engine)
        ring_for_unheard_tasks(engine)
        unserved_tasks(engine)
        return True

    def is_needed(self, patience: float) -> bool:
        """Whether nobody has looked for so many seconds."""
        with self._engine.database.read() as connection:
            now = self._engine.database.now(connection)
            return now - locks.ends(connection, LEASE) > patience * 1000

    def _stay_awake(self) -> None:
        now = time.monotonic()
        if self._awake_since is None or now - self._last_tick > self._break():
            self._awake_since = now
        self._last_tick = now

    def _break(self) -> float:
        return max(5.0, 5 * self._engine.settings.watchdog_interval)

    def _is_dead(self, server: ServerDefinition, now: int) -> bool:
        patience = self._engine.settings.server_patience
        if server.lock_file is not None:
            return False  # an embedded process: those who share its machine can tell
        assert self._awake_since is not None
        if time.monotonic() - self._awake_since < patience:
            return False
        return now - server.ping_time > patience * 1000

"""The watchdog of a fleet: many may look, one at a time does.

Whoever hears a tick asks for a lease; two beats that tick are one. Of the dead it speaks
only after somebody has looked without a break for as long as it takes to be declared dead:
a database that was away, or a laptop that slept, has killed nobody. Since when is kept in
the database: ticks go round in a fleet, and one process may hear one an hour.
"""

from __future__ import annotations

import uuid

from sqlalchemy import Connection

from flowengine.engine.engine import Engine
from flowengine.engine.recovery import (
    alarm_unserved_tasks,
    fail_silent_tries,
    notify_due_tasks,
    recover_lost_servers,
    unevaluated_runs,
)
from flowengine.store import locks
from flowengine.store.servers import ServerDefinition

LEASE = "watchdog"
AWAKE = "watchdog.awake"  #: its time is when the looks began to follow each other


class Watchdog:
    """Looks after one database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def tick(self) -> bool:
        """Look, unless somebody else just did; tell whether we looked."""
        engine, settings = self._engine, self._engine.settings
        with engine.database.write() as connection:
            now = engine.database.now(connection)
            last = locks.ends(connection, LEASE)
            # A tick's own owner: a second tick in the same interval is refused, ours too.
            duration = round(settings.watchdog_interval * 900)
            if not locks.acquire(connection, LEASE, uuid.uuid4().hex, duration, now):
                return False
            awake_since = self._stay_awake(connection, last, now)
        recover_lost_servers(engine, lambda server: self._is_dead(server, awake_since, now))
        fail_silent_tries(engine)
        unevaluated_runs(engine)
        notify_due_tasks(engine)
        alarm_unserved_tasks(engine)
        return True

    def is_needed(self, max_wait: float) -> bool:
        """Whether nobody has looked for so many seconds."""
        with self._engine.database.read() as connection:
            now = self._engine.database.now(connection)
            return now - locks.ends(connection, LEASE) > max_wait * 1000

    def _stay_awake(self, connection: Connection, last: int, now: int) -> int:
        """Return since when looks have followed each other without a break."""
        since = locks.ends(connection, AWAKE)
        if since and now - last <= self._break() * 1000:
            return since
        locks.acquire(connection, AWAKE, "", 0, now)
        return now

    def _break(self) -> float:
        """Seconds without a look after which heartbeats may have gone unheard.

        Well below the patience with servers: what passes unnoticed must not kill one.
        """
        settings = self._engine.settings
        return min(max(5.0, 5 * settings.watchdog_interval), settings.server_timeout / 2)

    def _is_dead(self, server: ServerDefinition, awake_since: int, now: int) -> bool:
        max_wait = self._engine.settings.server_timeout * 1000
        return now - awake_since >= max_wait and now - server.ping_time > max_wait

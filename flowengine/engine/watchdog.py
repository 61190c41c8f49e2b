"""The watchdog of a fleet: it starts recovery passes, one per interval among all processes."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from flowengine.engine import liveness
from flowengine.engine.deaths import death_rule, lock_probe
from flowengine.engine.engine import Engine
from flowengine.engine.liveness import LivenessWindow, observe
from flowengine.engine.recovery import Wake, notify_due_tasks, recover
from flowengine.store import Session
from flowengine.store.servers import ServerDefinition

LEASE = "watchdog"
GAP = "watchdog.gap:"  #: and the size of the gap; the row's time is the gap's end


class Watchdog:
    """Recovers the database of a fleet: every process may start a pass, one at a time does.

    A lease in the database makes one pass of two that start in the same interval. It is shorter
    than a long pass: passes may overlap, which recovery allows. The liveness window is in the
    database too, because each pass may run in another process.
    """

    def __init__(self, engine: Engine, wake: Wake = notify_due_tasks) -> None:
        self._engine, self._wake = engine, wake
        self._duration = round(engine.settings.watchdog_interval * 900)
        self.alive: Sequence[ServerDefinition] = ()  #: as the last pass of this object saw them

    def tick(self) -> bool:
        """Run a recovery pass unless one was started in this interval; return whether it ran."""
        engine = self._engine
        with engine.database.write() as session:
            now = session.now()
            before = self._window(session, now)
            # Each tick has its own owner, so that a second tick of this process is refused too.
            if not session.locks.acquire(LEASE, self._owner(), self._duration, now):
                return False
            window = before.observe(now, self._duration)
            for size, end in window.gaps.items():
                if before.gaps.get(size) != end:
                    session.locks.acquire(f"{GAP}{size}", "", 0, now)
            observation = observe(session, window)
        self.alive = observation.alive
        recover(
            engine,
            observation,
            death_rule(engine.settings, window, lock_probe(engine.database)),
            self._wake,
        )
        return True

    def _owner(self) -> str:
        return f"{self._engine.broker}.{uuid.uuid4().hex[:12]}"

    def wake_own(self) -> None:
        """Wake the servers of our broker, after a pass by a process of another one.

        Such a pass recovers all runs of the database, but its messages do not reach our servers.
        """
        engine, name = self._engine, f"{LEASE}.wake:{self._engine.broker}"
        with engine.database.write() as session:
            now = session.now()
            if not session.locks.acquire(name, self._owner(), self._duration, now):
                return
            if not session.recovery.has_work(now):
                return
            alive = session.servers.alive()
        self._wake(engine, alive)

    def state(self, patience: float = 0.0) -> tuple[bool, bool]:
        """Return whether the next pass is overdue, and whether another broker made the last."""
        with self._engine.database.autocommit_read() as session:
            now = session.now()
            owner, until = session.locks.owned(LEASE)
        other = owner.partition(".")[0] if "." in owner else ""
        is_other = bool(other and self._engine.broker and other != self._engine.broker)
        return self._is_overdue(now, until, patience), is_other

    def is_late(self, patience: float = 0.0) -> bool:
        """Whether the next pass is overdue by an interval: no beat ticks, or all pools are busy.

        `patience` is added to the interval, in seconds.
        """
        return self.state(patience)[0]

    def _is_overdue(self, now: int, until: int, patience: float) -> bool:
        most = (self._engine.settings.watchdog_interval + patience) * 1000
        return now - until > most or liveness.is_out_of_reach(until, now, self._duration)

    def _window(self, session: Session, now: int) -> LivenessWindow:
        rows = session.locks.ends_of(LEASE)
        gaps = {
            int(name.removeprefix(GAP)): end for name, end in rows.items() if name.startswith(GAP)
        }
        unnoticed = liveness.longest_unnoticed_gap(self._engine.settings)
        return LivenessWindow(now, unnoticed, rows.get(LEASE, 0), gaps)

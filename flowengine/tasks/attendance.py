"""What a Celery worker does for flowengine besides running tasks, in a thread of its own.

It makes the worker known and shows that it lives; it finds pool children that died with a
try in their hands; it delivers reports that waited on disk; and when no beat ticks, it is
the watchdog. A thread, not a timer of the event loop: that stands still while the broker
is away, and the database must still hear from us.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from flowengine.engine import Engine
from flowengine.engine.sweeps import lost_tries
from flowengine.engine.watchdog import Watchdog
from flowengine.settings import Settings
from flowengine.store import reports, servers, sweeping
from flowengine.store.servers import ServerDefinition, ServerState
from flowengine.worker import Spool

log = logging.getLogger("flowengine")


class Attendance:
    """One worker's presence in the database.

    The engine is asked for at each look: there is none while the database is away, also when
    the worker starts.
    """

    def __init__(
        self,
        engine: Callable[[], Engine],
        settings: Settings,
        server: ServerDefinition,
        names: Callable[[], Sequence[str]],
    ) -> None:
        self._open, self._settings = engine, settings
        self._server, self._names = server, names
        self._spool = Spool(settings.spool_directory)
        self._stands_in = False
        self._stop = threading.Event()
        self._is_registered = False
        self._last_beat = 0.0
        self._complained = False
        self._thread = threading.Thread(
            target=self._attend, name="flowengine-attendance", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def _attend(self) -> None:
        while True:
            try:
                self.look()
                self._complained = False
            except Exception as problem:
                if not self._complained:
                    log.warning("cannot attend: %s", problem, extra={"action": "attend_failed"})
                self._complained = True  # once: the database may be away for long
            if self._stop.wait(self._settings.watchdog_interval):
                return

    def look(self) -> None:
        """Do everything once."""
        engine = self._open()
        self._beat(engine)
        self._find_dead_children(engine)
        self._spool.deliver(engine)
        self._watch(engine)

    def _watch(self, engine: Engine) -> None:
        """Be the watchdog while nobody else is: until a tick of somebody else's precedes ours."""
        watchdog = Watchdog(engine)
        patience = max(5.0, 5 * self._settings.watchdog_interval)
        if self._stands_in or watchdog.is_needed(patience):
            self._stands_in = watchdog.tick()

    def _beat(self, engine: Engine) -> None:
        names = list(self._names())
        age = time.monotonic() - self._last_beat
        is_due = age >= self._settings.heartbeat_interval
        if self._is_registered and not is_due and names == self._server.handlers:
            return
        database = engine.database
        with database.write() as connection:
            now = database.now(connection)
            if not self._is_registered:
                self._server.start_time = self._server.ping_time = now
                self._server.handlers = names
                servers.register(connection, self._server)
            servers.beat(connection, self._server.uuid, names, now)
        self._is_registered = True
        self._server.handlers, self._last_beat = names, time.monotonic()

    def _find_dead_children(self, engine: Engine) -> None:
        """Report tries whose pool child is gone though this worker lives."""
        with engine.database.read() as connection:
            held = sweeping.held_by_boots(connection, [self._server.boot_id])
        dead = [task for task in held if task.pid is not None and not _is_alive(task.pid)]
        lost_tries(engine, dead, "the pool child")

    def leave(self) -> None:
        """Say that this worker has left; what it still holds is handed back."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._thread.join(timeout=2)
        try:
            database = self._open().database
            with database.write() as connection:
                now = database.now(connection)
                # Nobody looks after the tries of a server that has left.
                for task in sweeping.held_by_boots(connection, [self._server.boot_id]):
                    reports.release(connection, task.task_id, task.lease, now)
                servers.leave(connection, self._server.uuid, ServerState.SHUTDOWN)
        except Exception:
            log.exception("could not take leave", extra={"action": "leave_failed"})


def _is_alive(pid: int) -> bool:
    """Whether a process runs. One that has ended and waits for Celery to notice does not."""
    # Missing on some systems: there a dead child is found when Celery has noticed.
    with suppress(ChildProcessError, AttributeError):
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def server_of(server_id: str, boot_id: str, name: str) -> ServerDefinition:
    """Describe this worker."""
    try:
        ips = sorted({info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None)})
    except OSError:
        ips = []
    return ServerDefinition(
        uuid=server_id,
        server_group="default",
        service_name="flowengine-worker",
        server_name=name,
        server_ips=[str(ip) for ip in ips],
        boot_id=boot_id,
        pid=os.getpid(),
    )

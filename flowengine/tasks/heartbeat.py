"""What a Celery worker does for flowengine besides running tasks, in a thread of its own.

It makes the worker known and shows that it lives; it finds pool children that died with a
try in their hands; it delivers reports that waited on disk; and when no beat ticks, it is
the watchdog. A thread, not a timer of the event loop: that stands still while the broker
is away, and the database must still hear from us.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from flowengine.engine import Engine
from flowengine.engine.in_flight import InFlightMarkers
from flowengine.engine.recovery import release_dropped, report_lost_tries
from flowengine.engine.watchdog import Watchdog
from flowengine.settings import Settings
from flowengine.store import recovery_queries, servers
from flowengine.store.recovery_queries import HeldTask
from flowengine.store.servers import ServerDefinition
from flowengine.worker import Spool

log = logging.getLogger("flowengine")


class WorkerHeartbeat:
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
        lists: Callable[[], Sequence[str]],
    ) -> None:
        self._open, self._settings = engine, settings
        self._server, self._names, self._lists = server, names, lists
        self._markers = InFlightMarkers(settings.spool_directory, server.boot_id)
        self._held: list[HeldTask] = []  #: at the last look
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
        try:
            self._spool.deliver(engine)  # before it is looked whose try has been lost
        finally:
            self._look_after_children(engine)
            self._watch(engine)

    def _watch(self, engine: Engine) -> None:
        """Be the watchdog while nobody else is: until a tick of somebody else's precedes ours."""
        watchdog = Watchdog(engine)
        max_wait = max(5.0, 5 * self._settings.watchdog_interval)
        if self._stands_in or watchdog.is_needed(max_wait):
            self._stands_in = watchdog.tick()

    def _beat(self, engine: Engine) -> None:
        server = self._server
        serves = list(self._names()), list(self._lists())
        age = time.monotonic() - self._last_beat
        is_due = age >= self._settings.heartbeat_interval
        if self._is_registered and not is_due and serves == (server.handlers, server.topics):
            return
        server.handlers, server.topics = serves
        database = engine.database
        with database.write() as connection:
            now = database.now(connection)
            if not self._is_registered:
                server.start_time = server.ping_time = now
                servers.register(connection, server)
            servers.beat(connection, server, now)
        self._is_registered = True
        self._last_beat = time.monotonic()

    def _look_after_children(self, engine: Engine) -> None:
        """Report tries whose pool child is gone though this worker lives; kill what hangs."""
        with engine.database.read() as connection:
            held = recovery_queries.held_by_boots(connection, [self._server.boot_id])
            still = {task.task_id for task in held}
            gone = [task for task in self._held if task.task_id not in still and task.timeout_ms]
            hanging = recovery_queries.timed_out(connection, [task.task_id for task in gone])
        self._held = held
        dead = [task for task in held if task.pid is not None and not _is_alive(task.pid)]
        report_lost_tries(engine, dead, "the pool child")
        for task in gone:
            if task.task_id in hanging:
                self._kill(task)

    def _kill(self, task: HeldTask) -> None:
        """Kill a pool child that still works on a try which was ended for its silence.

        The pool puts another in its place. A thread cannot be killed: there the place is lost
        until the code returns.
        """
        if task.pid in (None, self._server.pid):
            return
        assert task.pid is not None
        if task.task_id in self._markers.running(task.pid):
            log.warning(
                "killing the pool child %d, which hangs in %s",
                task.pid,
                task.step_path,
                extra={"action": "child_killed", "run": task.run_id, "facet": task.name},
            )
            with suppress(ProcessLookupError):
                os.kill(task.pid, signal.SIGKILL)

    def leave(self) -> None:
        """Say that this worker has left; what it still holds is handed back."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._thread.join(timeout=2)
        try:
            engine = self._open()
            self._spool.deliver(engine)
            with engine.database.read() as connection:
                held = recovery_queries.held_by_boots(connection, [self._server.boot_id])
            # At once: otherwise they would be found by their age. What is done and cannot be
            # told is left to that.
            dropped = [task for task in held if not self._spool.has(task.task_id, task.lease)]
            release_dropped(engine, dropped)
            with engine.database.write() as connection:
                servers.leave(connection, self._server.uuid)
            self._markers.forget_all()
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

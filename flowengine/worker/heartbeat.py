"""The heartbeat of a server: its registration, its sign of life and its deregistration.

A thread sends it, not a timer of the event loop: the event loop stops while the broker is
unreachable, and the database must still get the heartbeat. The same thread delivers spooled reports
and then runs further jobs: a Celery worker checks its pool children and stands in for the beat.
Documents are read and published by another thread.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from importlib import metadata

from flowengine.authoring import event_facet_names
from flowengine.engine import Engine
from flowengine.engine.in_flight import InFlightMarkers
from flowengine.engine.recovery import release_dropped
from flowengine.engine.watchdog import Watchdog
from flowengine.errors import DatabaseTooNew
from flowengine.settings import Settings
from flowengine.store import refuse_newer
from flowengine.store.failures import is_unavailable
from flowengine.store.protocol import ServerLock
from flowengine.store.servers import ServerDefinition, ServerState
from flowengine.worker.orphaned_log_lines import deliver_orphaned_log_lines
from flowengine.worker.outage_log import outage_log
from flowengine.worker.pool_children import PoolChildren, TellEnd
from flowengine.worker.published_documents import DocumentPublisher
from flowengine.worker.published_schedules import SchedulePublisher
from flowengine.worker.published_workflows import WorkflowPublisher
from flowengine.worker.spool import Spool

log = logging.getLogger("flowengine")

_JOIN_SECONDS = 2.0  # the thread may hang in a call to the database

TaskLists = Callable[[], Sequence[str]]


class Heartbeat:
    """One server's heartbeat.

    It asks for the engine each time: there is none while the database is unreachable, also when the
    server starts.
    """

    def __init__(
        self,
        engine: Callable[[], Engine],
        settings: Settings,
        server: ServerDefinition,
        task_lists: TaskLists,
        jobs: Sequence[Callable[[Engine], object]],
        names: Callable[[], list[str]] = event_facet_names,
        end: Callable[[], object] | None = None,
    ) -> None:
        """`names` are the facets that the server has code for.

        `end` ends the process after its running work: it is called when the database was away for
        longer than the setting `alone_patience`, and when its schema needs newer code.
        """
        self._engine, self._settings, self.server = engine, settings, server
        self._names = names
        server.version, server.machine = _version(), socket.gethostname()
        server.max_tasks, server.max_workflows = (
            settings.max_tasks or None,
            settings.max_workflows or None,
        )
        self._task_lists, self._jobs = task_lists, jobs
        self._spool = Spool(settings.spool_directory)
        self._outages = outage_log(settings.database_url)
        self._publisher = SchedulePublisher()
        self._documents = DocumentPublisher(settings.workflows)
        self._end, self._end_worker = end if settings.alone_patience else None, end
        self._schema_due = 0.0
        self._stop = threading.Event()
        self._is_registered = self._has_failed = False
        self._failure, self._reached = (
            "",
            time.monotonic(),
        )  #: of the last pass, and the last good one
        self._sent = self._beaten = 0.0  #: the last full heartbeat, and the last of any kind
        self._lock: ServerLock | None = None
        #: The columns of the server's row that the last full heartbeat wrote.
        self._written: tuple[list[str], list[str], str | None] | None = None
        self._thread = threading.Thread(target=self._run, name="flowengine-heartbeat", daemon=True)

    def start(self) -> None:
        self._documents.start(self._engine)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                with self._outages.watch():
                    self._check_schema()
                    self.run_once()
                self._has_failed, self._failure, self._reached = False, "", time.monotonic()
            except Exception as problem:
                if self._stop.is_set():
                    return
                self._failure = f"{type(problem).__name__}: {problem}"
                if not is_unavailable(problem) and not self._has_failed:
                    self._has_failed = True  # logged once
                    log.warning(
                        "heartbeat of server %s (pid %s), or a job after it, failed: %s; it is "
                        "repeated every %g s, and after %g s without a heartbeat the server is "
                        "declared dead and its tasks run again elsewhere",
                        self.server.server_name,
                        self.server.pid,
                        problem,
                        self._settings.watchdog_interval,
                        self._settings.server_timeout,
                        exc_info=True,
                        extra={"action": "server_heartbeat_failed"},
                    )
                self._end_alone()
            if self._stop.wait(self._settings.watchdog_interval):
                return

    def _check_schema(self) -> None:
        """End a worker whose database needs newer code: its work would fail, and stand still."""
        now = time.monotonic()
        if now < self._schema_due:
            return
        self._schema_due = now + self._settings.heartbeat_interval
        try:
            refuse_newer(self._engine().database)
        except DatabaseTooNew as problem:
            self._schema_due = math.inf  # logged once
            log.error(
                "server %s (pid %s) cannot go on: %s; %s",
                self.server.server_name,
                self.server.pid,
                problem,
                "the worker ends after its running steps; its work goes to workers of newer code"
                if self._end_worker
                else "end this process",
                extra={"action": "schema_too_new"},
            )
            if self._end_worker:
                self._end_worker()

    def _end_alone(self) -> None:
        """End a worker that nobody can give work to, and that cannot say that it lives."""
        alone = time.monotonic() - self._reached
        if self._end is None or alone <= self._settings.alone_patience:
            return
        log.error(
            "no heartbeat of server %s (pid %s) has reached the database for %.0f s, longer than "
            "alone_patience (%g s): the worker ends after its running steps; its reports are in "
            "the spool",
            self.server.server_name,
            self.server.pid,
            alone,
            self._settings.alone_patience,
            extra={"action": "worker_alone"},
        )
        end, self._end = self._end, None
        end()

    @property
    def problem(self) -> str:
        """Why the database does not know that this server lives; empty: it does."""
        silent = time.monotonic() - self._reached
        if self._failure:
            return f"the heartbeat fails: {self._failure}"
        if self._thread.is_alive() and silent > self._settings.server_timeout:
            return f"the heartbeat has not ended for {silent:.0f} s"
        return ""

    def run_once(self) -> None:
        engine = self._engine()
        self.send(engine)
        try:
            self._spool.deliver(engine)  # before a job takes their tries for lost or silent
            self._publisher.publish(engine)
            deliver_orphaned_log_lines(engine)
        finally:
            for job in self._jobs:
                job(engine)

    def send(self, engine: Engine) -> None:
        """Send a heartbeat if it is due or the row of the server changes; register first."""
        server = self.server
        is_due = time.monotonic() - self._sent >= self._settings.heartbeat_interval
        token = self._hold_lock(engine, verify=is_due)
        serves = self._names(), list(self._task_lists())
        if not is_due and self._written == (*serves, token):
            if self._beat():
                return
            token = self._hold_lock(engine, verify=False)  # its session may be lost
        server.handlers, server.topics = serves
        server.lock_token = token
        with engine.database.write() as session:
            now = session.now()
            is_drained = server.is_drained
            if self._is_registered:
                is_drained = session.servers.record_heartbeat(server, now)
            else:
                server.start_time = server.ping_time = now
                session.servers.register(server)
        self._is_registered, self._written = True, (*serves, token)
        self._sent = self._beaten = time.monotonic()
        self._note_drain(is_drained=is_drained)

    def _note_drain(self, *, is_drained: bool) -> None:
        if is_drained == self.server.is_drained:
            return
        self.server.is_drained = is_drained
        if is_drained:
            log.info(
                "worker %s is drained: it finishes the tasks that it holds and claims no others; "
                "`flowengine workers undrain %s` ends this",
                self.server.server_name,
                self.server.server_name,
                extra={"action": "worker_drained"},
            )
        else:
            log.info(
                "worker %s is not drained any more: it claims tasks again",
                self.server.server_name,
                extra={"action": "worker_undrained"},
            )

    def run(self, engine: Engine) -> None:
        """Register the server that starts, if it is not registered, and say that it runs."""
        self.send(engine)
        self.server.state, self._written = ServerState.RUNNING, None
        self.send(engine)

    def _hold_lock(self, engine: Engine, *, verify: bool) -> str | None:
        if self._lock is None and self._settings.lock_heartbeat_interval > 0:
            self._lock = engine.database.server_lock()
        return None if self._lock is None else self._lock.hold(verify=verify)

    def _beat(self) -> bool:
        """Send a short heartbeat, with a lock and if it is due; False: a full one is needed."""
        settings, now = self._settings, time.monotonic()
        # Half a tick early rather than half a tick late.
        pause = settings.lock_heartbeat_interval - settings.watchdog_interval / 2
        if self._lock is None or self.server.lock_token is None or now - self._beaten < pause:
            return True
        self._beaten = now
        return self._lock.beat(self.server.uuid)

    def stop(self) -> None:
        """End the thread, release the tasks that the server still holds, and deregister it."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._documents.stop(_JOIN_SECONDS)
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)
        boot_id = self.server.boot_id
        try:
            engine = self._engine()
            self._spool.deliver(engine)
            with engine.database.read() as session:
                held = session.recovery.held_by_boots([boot_id])
            # Tasks with a spooled report stay claimed until the report is delivered.
            release_dropped(engine, [t for t in held if not self._spool.has(t.task_id, t.lease)])
            with engine.database.write() as session:
                session.servers.deregister(self.server.uuid)
            InFlightMarkers(self._settings.spool_directory, boot_id).forget_all()
        except Exception as problem:
            log.warning(
                "deregistration failed: %s; the tasks of %s run again after its timeout",
                problem,
                self.server.server_name,
                exc_info=not is_unavailable(problem),
                extra={"action": "deregistration_failed"},
            )
        finally:
            if self._lock is not None:
                self._lock.release()


def worker_heartbeat(
    engine: Callable[[], Engine],
    settings: Settings,
    server: ServerDefinition,
    lists: TaskLists,
    *more_jobs: Callable[[Engine], object],
    tidy: Callable[[], object] = lambda: None,
    end: Callable[[], object] | None = None,
    tell: TellEnd = lambda _, __: None,
) -> Heartbeat:
    """`tidy` ends commands that killed processes have left on this machine.

    `tell` is called for each try that has ended with its pool child.
    """
    children = PoolChildren(settings, server, tidy=tidy, tell=tell)
    watching = (lambda _: tidy()), children.check, StandIn().watch
    jobs = (*watching, WorkflowPublisher().publish, *more_jobs)
    return Heartbeat(engine, settings, server, lists, jobs, end=end)


class StandIn:
    """The watchdog while no beat ticks: until a tick of another process precedes ours.

    While processes of another broker make the passes, it wakes the servers of ours.
    """

    def __init__(self) -> None:
        self._is_active = False

    def watch(self, engine: Engine) -> None:
        watchdog = Watchdog(engine)
        if self._is_active:
            self._is_active = watchdog.tick()
            return
        is_late, is_of_other_broker = watchdog.state()
        if is_late:
            self._is_active = watchdog.tick()
        elif is_of_other_broker:
            watchdog.wake_own()


def _version() -> str:
    try:
        return metadata.version("flowengine")
    except metadata.PackageNotFoundError:  # a copy of the source that is not installed
        return ""


def server_of(
    server_id: str, boot_id: str, name: str, app: str = "", broker: str = ""
) -> ServerDefinition:
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
        state=ServerState.RUNNING,
        boot_id=boot_id,
        pid=os.getpid(),
        app=app,
        broker=broker,
    )

"""/health, /status and /metrics of a Celery worker, in its main process (setting `status_port`)."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from flowengine.authoring import event_facet_names
from flowengine.engine import Engine
from flowengine.errors import HttpServerRefused
from flowengine.http.server import HttpServer
from flowengine.sdk.status import (
    MAX_RUNNING,
    RunningItem,
    ServerStatus,
    Uptime,
    status_routes,
)
from flowengine.store.servers import HandledCount, ServerDefinition, ServerState
from flowengine.worker.heartbeat import Heartbeat

log = logging.getLogger("flowengine")

_PORT_ATTEMPTS = 20  # several workers of a machine have the same settings
_STOP_SECONDS = 1.0


class WorkerStatus:
    """The status of a worker; its pool children write their counts and tasks to the database."""

    def __init__(
        self,
        engine: Callable[[], Engine],
        heartbeat: Heartbeat,
        server: ServerDefinition,
        task_lists: Callable[[], Sequence[str]],
        concurrency: int,
    ) -> None:
        self._engine, self._heartbeat, self._server = engine, heartbeat, server
        self._task_lists, self._concurrency = task_lists, concurrency
        self._uptime, self._is_stopping = Uptime(), False
        self._http: HttpServer | None = None

    def start(self, port: int) -> None:
        """Serve at the port, or the next free one; a worker without a port works on."""
        server = HttpServer(status_routes(self), port=port, port_attempts=_PORT_ATTEMPTS)
        try:
            server.start()
        except HttpServerRefused as refused:
            log.error(
                "/status of worker %s is not served: %s; choose another FLOWENGINE_STATUS_PORT",
                self._server.server_name,
                refused,
                extra={"action": "status_refused"},
            )
            return
        self._http = server
        log.info("status at %s/status", server.url, extra={"action": "status_served"})

    @property
    def port(self) -> int:
        return self._http.port if self._http else 0

    def stopping(self) -> None:
        self._is_stopping = True

    def stop(self) -> None:
        if self._http is not None:
            self._http.stop(_STOP_SECONDS)

    def problem(self) -> str:
        return "it stops" if self._is_stopping else self._heartbeat.problem

    def status(self) -> ServerStatus:
        handled: list[HandledCount] = []
        running: list[RunningItem] = []
        problem = self.problem()
        try:
            handled, running = self._of_database()
        except Exception as failure:
            problem = problem or f"the database cannot be read: {failure}"
        server = self._server
        return ServerStatus(
            server_id=server.uuid,
            state=ServerState.SHUTDOWN if self._is_stopping else ServerState.RUNNING,
            uptime_seconds=self._uptime.seconds,
            service_name=server.service_name,
            server_group=server.server_group,
            server_name=server.server_name,
            pid=os.getpid(),
            version=version("flowengine"),
            task_lists=list(self._task_lists()),
            handlers=event_facet_names(),
            max_concurrent=self._concurrency,
            handled=handled,
            running=running,
            problem=problem,
        )

    def _of_database(self) -> tuple[list[HandledCount], list[RunningItem]]:
        with self._engine().database.read() as session:
            now = session.now()
            rows = session.servers.by_boot_ids([self._server.boot_id])
            session.servers.load_handled(rows)
            held = session.recovery.held_by_boots([self._server.boot_id])
        handled = [count for row in rows for count in row.handled]
        return sorted(handled, key=lambda count: count.handler), [
            RunningItem(t.run_id, t.step_path, t.name, max(0, now - t.activity) / 1000)
            for t in held[:MAX_RUNNING]
        ]


def serve_status(flowengine: Any, worker: Any, heartbeat: Heartbeat) -> WorkerStatus:
    """Serve the status of a worker of a Celery app."""
    status = WorkerStatus(
        lambda: flowengine.engine,
        heartbeat,
        heartbeat.server,
        flowengine.consumed,
        worker.concurrency or 1,
    )
    status.start(flowengine.settings.status_port)
    return status

"""A poller for production: locks, requests to start workflows, HTTP status, signals.

    runner = RunnerService.connect("postgresql+psycopg://…", RunnerConfig(), tools)
    runner.start()

It polls, claims, runs and reports like an `AgentPoller`, and takes its handlers from a
`ToolRegistry`, which several runners may share.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from types import TracebackType
from typing import Self

from flowengine.engine import Engine
from flowengine.errors import PollerRefused
from flowengine.program import Program
from flowengine.sdk.config import RunnerConfig, check_heartbeat
from flowengine.sdk.connection import connected_engine
from flowengine.sdk.execution import ExecuteHandler, Programs
from flowengine.sdk.item_locks import ItemLocks
from flowengine.sdk.polling_server import PollingServer
from flowengine.sdk.served_facets import ServedFacets
from flowengine.sdk.status import (
    MAX_RUNNING,
    HandledTotals,
    RunningItem,
    ServerStatus,
    Uptime,
    status_routes,
)
from flowengine.sdk.stop_signals import stopped_by_signals
from flowengine.sdk.tool_registry import ToolRegistry
from flowengine.settings import Settings
from flowengine.store.servers import ServerState
from flowengine.worker.claimed_tasks import ClaimState

_HTTP_SECONDS = 1.0  # that running requests get when the service has stopped


class RunnerService:
    """Runs the handlers of a registry for the tasks of one task list."""

    def __init__(
        self,
        engine: Engine,
        config: RunnerConfig | None = None,
        tool_registry: ToolRegistry | None = None,
    ) -> None:
        self.engine, self.config = engine, config or RunnerConfig()
        config = self.config
        check_heartbeat(config.heartbeat_interval_ms, engine.settings.server_timeout)
        self.tool_registry = tool_registry or ToolRegistry()
        self._programs = Programs(allow_scripts=engine.settings.scripts)
        execute = ExecuteHandler(engine, self._programs)
        self._facets = ServedFacets(self.tool_registry.table, config.topics, execute)
        self._totals, self._uptime = HandledTotals(), Uptime()
        self._server = PollingServer(
            engine,
            config,
            self._facets,
            stop_seconds=config.shutdown_timeout_ms / 1000,
            show=self._totals.count,
            look=functools.partial(self._facets.look, engine, config.task_list),
        )
        # Their holder is this server: they end when it is dead or deregistered.
        self._locks = ItemLocks(
            engine.locks.held_by(self._server.server_id),
            config.lock_duration_ms,
            config.lock_extend_interval_ms,
        )
        self._server.gate = self._locks
        self._http_port = 0
        self._owns_engine = False

    @classmethod
    def connect(
        cls,
        database_url: str = "",
        config: RunnerConfig | None = None,
        tool_registry: ToolRegistry | None = None,
        *,
        settings: Settings | None = None,
    ) -> Self:
        """Return a runner on a database, with an engine of its own; `close` closes it.

        Without a URL it takes the one of the settings, those of the environment by default.
        """
        engine = connected_engine(database_url, settings)
        try:
            runner = cls(engine, config, tool_registry)
        except BaseException:
            engine.close()
            raise
        runner._owns_engine = True
        return runner

    def add_program(self, program: Program) -> list[str]:
        """Let requests start the workflows of a program by name; return their names.

        The workflows of imported Python modules need not be added.
        """
        return self._programs.add(program)

    # --- properties ---

    @property
    def server_id(self) -> str:
        """The id of this runner in the registry of servers."""
        return self._server.server_id

    @property
    def is_running(self) -> bool:
        """Whether `start` polls for tasks."""
        return self._server.is_running

    @property
    def http_port(self) -> int:
        """The port of the HTTP server while it serves; else 0."""
        return self._http_port

    # --- the loop ---

    def start(self, ready: Callable[[], object] | None = None) -> None:
        """Register this server, serve HTTP, and run handlers until `stop` or a signal. Blocks.

        In the main thread SIGTERM and SIGINT stop it, and a second one ends the process. `ready`
        is called when it is registered. Raises HttpServerRefused if no port can be bound.
        """
        self._server.check_start()
        with stopped_by_signals(self.stop), self._serving_http(), self._locks.extended():
            if not self._server.is_stopped:  # by a signal, before it began
                self._server.run(ready or (lambda: None))

    @contextmanager
    def _serving_http(self) -> Iterator[None]:
        config = self.config
        if config.http_max_port_attempts == 0:
            yield
            return
        try:
            from flowengine.http.server import HttpServer  # needs tornado
        except ImportError as missing:
            raise PollerRefused(
                f"{missing}; or start the runner without HTTP: http_max_port_attempts=0"
            ) from missing
        attempts = config.http_max_port_attempts
        server = HttpServer(status_routes(self), port=config.http_port, port_attempts=attempts)
        server.start()
        self._http_port = server.port
        try:
            yield
        finally:
            self._http_port = 0
            server.stop(_HTTP_SECONDS)

    def stop(self) -> None:
        """End the loop: finish the running handlers, give other tasks back, and deregister.

        It waits for the end of `start`, unless it is called by that thread (by a signal) or by a
        handler. A handler that does not return in `shutdown_timeout_ms` is left behind, and its
        task runs elsewhere.
        """
        self._server.stop()

    def poll_once(self) -> int:
        """Work on due tasks in this thread, at most `max_concurrent`; return their number.

        It starts no thread, registers no server, serves no HTTP and extends no lock: it is for
        tests, and for handlers that return within `server_timeout` and `lock_duration_ms`.
        """
        return self._server.poll_once()

    def cache_workflow_ast(self, workflow_id: str, ast: object = None) -> None:
        """Read the program of a run before it is needed; see `AgentPoller.cache_workflow_ast`."""
        self._server.cache_program(workflow_id)

    # --- status ---

    def problem(self) -> str:
        """Return why it is not healthy; empty: it runs, and its heartbeat reaches the database."""
        server = self._server
        if server.is_stopped:
            return "it stops"
        if not server.is_running or server.heartbeat is None:
            return "it has not started"
        return server.heartbeat.problem

    def status(self) -> ServerStatus:
        """Return the state of this runner, as /status shows it."""
        server, config = self._server, self.config
        state = ServerState.RUNNING if server.is_running else ServerState.STARTUP
        return ServerStatus(
            server_id=server.server_id,
            state=ServerState.SHUTDOWN if server.is_stopped else state,
            uptime_seconds=self._uptime.seconds,
            service_name=config.service_name,
            server_group=config.server_group,
            server_name=config.server_name,
            pid=os.getpid(),
            version=version("flowengine"),
            task_lists=[config.task_list],
            handlers=self._facets.served(),
            max_concurrent=config.max_concurrent,
            topics=config.topics,
            handled=self._totals.counts(),
            running=self._running(),
            problem=self.problem(),
        )

    def _running(self) -> list[RunningItem]:
        if (worker := self._server.worker) is None:
            return []
        claimed = worker.claimed_tasks
        started, now = claimed.in_states(ClaimState.STARTED), claimed.clock()
        return [
            RunningItem(e.task.workflow_id, e.task.step_path, e.task.name, round(now - e.since, 3))
            for e in started[:MAX_RUNNING]
        ]

    # --- the engine of `connect` ---

    def close(self) -> None:
        """Stop; close the engine if `connect` has made it."""
        self.stop()
        if self._owns_engine:
            self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

"""An agent that needs the database and no broker.

    poller = AgentPoller.connect("postgresql+psycopg://…")
    poller.register("billing.ProcessPayment", pay)
    poller.start()

It claims, runs and reports tasks with the worker that Celery workers have (`TaskWorker`); here are
its threads, its registration and its handlers. On PostgreSQL it is notified of due tasks.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from flowengine.authoring import EventFacet
from flowengine.engine import Engine
from flowengine.engine.pollers import KNOWN_SECONDS
from flowengine.errors import PollerRefused, UnknownRun
from flowengine.sdk.config import AgentPollerConfig
from flowengine.sdk.handlers import Callback
from flowengine.sdk.pace import PollPace
from flowengine.sdk.poll_threads import PollThreads
from flowengine.sdk.results import CallbackResults
from flowengine.sdk.stand_in import PollerStandIn
from flowengine.sdk.tool_registry import ToolRegistry
from flowengine.settings import Settings
from flowengine.store import Database, ensure_schema
from flowengine.store.claims import WorkerIdentity
from flowengine.store.servers import POLLER, ServerDefinition, ServerState
from flowengine.worker import TaskWorker
from flowengine.worker.handlers import FindHandler
from flowengine.worker.heartbeat import Heartbeat, server_of
from flowengine.worker.outage_log import outage_log
from flowengine.worker.spool import Spool

C = TypeVar("C", bound=Callback)
F = TypeVar("F", bound=EventFacet[..., Any])

_STOP_SECONDS = 30.0  # that running callbacks get when the poller stops
_JOIN_SECONDS = 0.1  # that a thread gets to end after its callback has


class AgentPoller:
    """Runs registered callbacks for the tasks of one task list."""

    def __init__(self, engine: Engine, config: AgentPollerConfig | None = None) -> None:
        self.engine, self.config = engine, config or AgentPollerConfig()
        self.config.check_heartbeat(engine.settings.server_timeout)
        self._tools = ToolRegistry()
        self._handlers = self._tools.table
        self._server_id, self._boot_id = uuid.uuid4().hex, uuid.uuid4().hex
        self._owns_engine = False
        self._lock = threading.Lock()
        self._threads: PollThreads | None = None  #: once started
        self._starter: threading.Thread | None = None  #: the thread in `start`
        self._is_stopped = False
        self._ended = threading.Event()

    @classmethod
    def connect(
        cls,
        database_url: str = "",
        config: AgentPollerConfig | None = None,
        *,
        settings: Settings | None = None,
    ) -> Self:
        """Return a poller on a database, with an engine of its own; `close` closes it.

        Without a URL it takes the one of the settings, those of the environment by default.
        """
        settings = settings or Settings.from_environment()
        if database_url:
            settings = replace(settings, database_url=database_url)
        database = Database(settings.database_url, schema=settings.schema)
        try:
            ensure_schema(database, upgrade=not database.has_server)
            poller = cls(Engine(database, settings=settings), config)
        except BaseException:
            database.close()
            raise
        poller._owns_engine = True
        return poller

    # --- handlers ---

    @overload
    def register(self, facet_name: str, callback: Callback) -> None: ...
    @overload
    def register(self, facet_name: str) -> Callable[[C], C]: ...
    @overload
    def register(self, facet_name: F) -> F: ...
    def register(self, facet_name: Any, callback: Any = None) -> Any:
        """Register the handler of an event facet, by its qualified or its short name.

        A callback takes the arguments of a step as a dict and returns its results as a dict; it may
        be an ``async def``. With a name alone this is a decorator. An `EventFacet` is registered
        under its own name.
        """
        return self._tools.register(facet_name, callback)

    def registered_names(self) -> list[str]:
        """Return the names with which handlers are registered, sorted."""
        return self._handlers.registered()

    # --- properties ---

    @property
    def server_id(self) -> str:
        """The id of this poller in the registry of servers."""
        return self._server_id

    @property
    def is_running(self) -> bool:
        """Whether `start` polls for tasks."""
        return self._threads is not None and not self._is_stopped

    # --- the loop ---

    def start(self) -> None:
        """Register this server, and run callbacks until `stop` is called. Blocks."""
        config, handlers, engine = self.config, self._handlers, self.engine
        is_all_async = handlers.is_all_async
        with self._lock:
            self._check_start()
            # Coroutines need no threads: one begins them, and the event loop runs them.
            number = 1 if is_all_async else config.max_concurrent
            worker = self._worker(
                self._boot_id, handlers.find if is_all_async else handlers.find_blocking
            )
            self._threads = threads = PollThreads(
                number,
                functools.partial(worker.drain, config.task_list),
                # The other processes know of it when the rows they have cached are read again.
                PollPace(config.poll_interval_ms / 1000, 2 * KNOWN_SECONDS),
                outage_log(engine.settings.database_url),
            )
            self._starter = threading.current_thread()
        heartbeat = self._heartbeat()
        try:
            heartbeat.run(engine)
            heartbeat.start()
            subscribed = engine.pollers.subscribed(self._server_id, config.task_list, threads.wake)
            with subscribed as listener:
                threads.start()
                is_notified = lambda: listener is not None and listener.is_listening  # noqa: E731
                threads.keep_polling(is_notified)
        finally:
            try:
                self._is_stopped = True
                threads.stop()
                worker.stop(_STOP_SECONDS)
                threads.join(_JOIN_SECONDS)
                heartbeat.stop()
            finally:
                self._ended.set()

    def _check_start(self) -> None:
        if self._is_stopped:
            raise PollerRefused("this poller was stopped; create another one")
        if self._threads is not None:
            raise PollerRefused("this poller is running already")
        if not self._handlers.registered():
            raise PollerRefused("this poller has no handler; register one before start()")

    def _worker(self, boot_id: str, find: FindHandler) -> TaskWorker:
        return TaskWorker(
            self.engine,
            WorkerIdentity(self._server_id, boot_id, os.getpid()),
            self._handlers.names,
            lambda: [self.config.task_list],
            find=find,
            storable=CallbackResults(self.engine, find).storable,
            async_limit=self.config.max_concurrent,
        )

    def _heartbeat(self) -> Heartbeat:
        config = self.config
        server: ServerDefinition = replace(
            server_of(self._server_id, self._boot_id, config.server_name),
            server_group=config.server_group,
            service_name=config.service_name,
            state=ServerState.STARTUP,
            manager=POLLER,
        )
        interval = config.heartbeat_interval_ms / 1000
        return Heartbeat(
            lambda: self.engine,
            replace(self.engine.settings, heartbeat_interval=interval),
            server,
            lambda: [config.task_list],
            [PollerStandIn().watch],
            names=self._handlers.served,
        )

    def stop(self) -> None:
        """End the loop: finish the running callbacks, give other tasks back, and deregister.

        It waits for the end of `start`, unless it is called by that thread (by a handler of a
        signal) or by a callback. A callback that does not return in 30 seconds is left behind, and
        its task runs elsewhere.
        """
        with self._lock:
            threads, self._is_stopped = self._threads, True
        if threads is None:
            return
        threads.stop()
        if threading.current_thread() is not self._starter and not threads.has_current_thread:
            self._ended.wait(2 * _STOP_SECONDS)

    def poll_once(self) -> int:
        """Work on due tasks in this thread, at most `max_concurrent`; return their number.

        It starts no thread, registers no server and sends no heartbeat: it is for tests, and for
        callbacks that return within the setting `server_timeout`. Coroutines run in this thread.
        """
        if self._handlers.has_async:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                pass
            else:
                raise PollerRefused(
                    "poll_once() runs async callbacks in its own thread, where an event loop "
                    "runs already; call it with asyncio.to_thread"
                )
        if not self._handlers.registered():
            return 0
        Spool(self.engine.settings.spool_directory).deliver(self.engine)
        # With a boot of its own: the heartbeat of a running poller does not speak for it.
        worker = self._worker(uuid.uuid4().hex, self._handlers.find_in_place)
        try:
            return worker.poll(self.config.task_list, self.config.max_concurrent)
        finally:
            worker.client.end()

    def cache_workflow_ast(self, workflow_id: str, ast: object = None) -> None:
        """Read the program of a run before it is needed.

        The run's program is stored with it, and a poller reads it when it first reports a task of
        it: so this only saves that query. `ast` is accepted and not used: a program is not changed
        by the agents that work on its run. Raises UnknownRun.
        """
        with self.engine.database.read() as session:
            if (run := session.runs.get(workflow_id)) is None:
                raise UnknownRun(workflow_id)
            self.engine.programs.plan(session, run.program_hash)

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

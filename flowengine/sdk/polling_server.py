"""A server that polls the database for tasks: its registration, its threads and its worker.

`AgentPoller` and `RunnerService` are made of it. It claims, runs and reports tasks with the worker
that Celery workers have (`TaskWorker`).
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from flowengine.engine import Engine
from flowengine.engine.pollers import KNOWN_SECONDS
from flowengine.errors import PollerRefused, UnknownRun
from flowengine.sdk.pace import PollPace
from flowengine.sdk.poll_threads import PollThreads
from flowengine.sdk.results import CallbackResults
from flowengine.sdk.stand_in import PollerStandIn
from flowengine.store.claims import WorkerIdentity
from flowengine.store.servers import POLLER, ServerDefinition, ServerState
from flowengine.worker import TaskWorker
from flowengine.worker.handlers import FindHandler, Handler
from flowengine.worker.heartbeat import Heartbeat, server_of
from flowengine.worker.item_gate import ItemGate
from flowengine.worker.outage_log import outage_log
from flowengine.worker.spool import Spool
from flowengine.worker.tries import Show

_JOIN_SECONDS = 0.1  # that a thread gets to end after its callback has


class PollingConfig(Protocol):
    """The fields that the configurations of all polling servers have."""

    @property
    def service_name(self) -> str: ...
    @property
    def server_group(self) -> str: ...
    @property
    def server_name(self) -> str: ...
    @property
    def task_list(self) -> str: ...
    @property
    def poll_interval_ms(self) -> int: ...
    @property
    def max_concurrent(self) -> int: ...
    @property
    def heartbeat_interval_ms(self) -> int: ...


class Facets(Protocol):
    """The facets that a server has handlers for. Shared by its threads."""

    def names(self) -> list[str]:
        """Return the names to claim tasks of."""

    def served(self) -> list[str]:
        """Return the names that the row of the server shows."""

    def find(self, name: str) -> Handler | None: ...
    def find_blocking(self, name: str) -> Handler | None: ...
    def find_in_place(self, name: str) -> Handler | None: ...
    @property
    def is_empty(self) -> bool: ...
    @property
    def has_async(self) -> bool: ...
    @property
    def is_all_async(self) -> bool: ...


class PollingServer:
    def __init__(
        self,
        engine: Engine,
        config: PollingConfig,
        facets: Facets,
        *,
        stop_seconds: float,
        show: Show | None = None,
        look: Callable[[], object] = lambda: None,
    ) -> None:
        """`stop_seconds` are those that running callbacks get when it stops.

        `show` is called for each try that has ended, and `look` before tasks are claimed.
        """
        self._engine, self._config, self._facets = engine, config, facets
        self._stop_seconds, self._show, self._look = stop_seconds, show, look
        self.server_id, self.boot_id = uuid.uuid4().hex, uuid.uuid4().hex
        self.gate: ItemGate | None = None  #: lets claimed tasks start
        self.worker: TaskWorker | None = None  #: once started
        self.heartbeat: Heartbeat | None = None
        self._lock = threading.Lock()
        self._threads: PollThreads | None = None
        self._starter: threading.Thread | None = None  #: the thread in `run`
        self.is_stopped = False
        self._ended = threading.Event()

    @property
    def is_running(self) -> bool:
        return self._threads is not None and not self.is_stopped

    # --- the loop ---

    def run(self, ready: Callable[[], object] = lambda: None) -> None:
        """Register this server, call `ready`, and work on tasks until `stop` is called. Blocks."""
        config, facets, engine = self._config, self._facets, self._engine
        with self._lock:
            self.check_start()
            # Coroutines need no threads: one begins them, and the event loop runs them.
            is_all_async = facets.is_all_async
            number = 1 if is_all_async else config.max_concurrent
            find = facets.find if is_all_async else facets.find_blocking
            self.worker = worker = self._worker(self.boot_id, find)
            self._threads = threads = PollThreads(
                number,
                functools.partial(self._drain, worker),
                # The other processes know of it when the rows they have cached are read again.
                PollPace(config.poll_interval_ms / 1000, 2 * KNOWN_SECONDS),
                outage_log(engine.settings.database_url),
                config.task_list,
            )
            self._starter = threading.current_thread()
        self.heartbeat = heartbeat = self._heartbeat()
        try:
            heartbeat.run(engine)
            heartbeat.start()
            subscribed = engine.pollers.subscribed(self.server_id, config.task_list, threads.wake)
            with subscribed as listener:
                threads.start()
                ready()
                is_notified = lambda: listener is not None and listener.is_listening  # noqa: E731
                threads.keep_polling(is_notified)
        finally:
            try:
                self.is_stopped = True
                threads.stop()
                worker.stop(self._stop_seconds)
                threads.join(_JOIN_SECONDS)
                heartbeat.stop()
            finally:
                self._ended.set()

    def check_start(self) -> None:
        if self.is_stopped:
            raise PollerRefused("this poller was stopped; create another one")
        if self._threads is not None:
            raise PollerRefused("this poller is running already")
        if self._facets.is_empty:
            raise PollerRefused("this poller has no handler; register one before start()")

    def _drain(self, worker: TaskWorker, wake: int) -> int:
        self._look()
        return worker.drain(self._config.task_list, wake)

    def _worker(self, boot_id: str, find: FindHandler) -> TaskWorker:
        return TaskWorker(
            self._engine,
            WorkerIdentity(self.server_id, boot_id, os.getpid()),
            self._facets.names,
            lambda: [self._config.task_list],
            show=self._show,
            find=find,
            storable=CallbackResults(self._engine, find).storable,
            async_limit=self._config.max_concurrent,
            gate=self.gate,
        )

    def _heartbeat(self) -> Heartbeat:
        config = self._config
        server: ServerDefinition = replace(
            server_of(self.server_id, self.boot_id, config.server_name),
            server_group=config.server_group,
            service_name=config.service_name,
            state=ServerState.STARTUP,
            manager=POLLER,
        )
        interval = config.heartbeat_interval_ms / 1000
        return Heartbeat(
            lambda: self._engine,
            replace(self._engine.settings, heartbeat_interval=interval),
            server,
            lambda: [config.task_list],
            [PollerStandIn().watch],
            names=self._facets.served,
        )

    def stop(self) -> None:
        """End the loop, and wait for the end of `run`.

        It does not wait if it is called by the thread of `run` (by a handler of a signal), or by a
        callback.
        """
        with self._lock:
            threads, self.is_stopped = self._threads, True
        if threads is None:
            return
        threads.stop()
        if threading.current_thread() is not self._starter and not threads.has_current_thread:
            self._ended.wait(2 * self._stop_seconds)

    # --- without a loop ---

    def poll_once(self) -> int:
        """Work on due tasks in this thread, at most `max_concurrent`; return their number."""
        if self._facets.has_async:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                pass
            else:
                raise PollerRefused(
                    "poll_once() runs async callbacks in its own thread, where an event loop "
                    "runs already; call it with asyncio.to_thread"
                )
        if self._facets.is_empty:
            return 0
        Spool(self._engine.settings.spool_directory).deliver(self._engine)
        # With a boot of its own: the heartbeat of a running poller does not speak for it.
        worker = self._worker(uuid.uuid4().hex, self._facets.find_in_place)
        self._look()
        try:
            return worker.poll(self._config.task_list, self._config.max_concurrent)
        finally:
            worker.client.end()

    def cache_program(self, run_id: str) -> None:
        """Read the program of a run before it is needed. Raises UnknownRun."""
        with self._engine.database.read() as session:
            if (run := session.runs.get(run_id)) is None:
                raise UnknownRun(run_id)
            self._engine.programs.plan(session, run.program_hash)

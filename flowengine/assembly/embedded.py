"""The embedded default: everything in this process, nothing to install or start.

A SQLite file in the working directory keeps the runs. Celery runs on its in-process
transport with a pool of threads, and the watchdog in a thread beside it. The transport
forgets everything when the process ends, and may: the file knows what is unfinished, and
the next process that opens it goes on. Several processes on one file share the work.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from celery import Celery, _state
from celery.concurrency.thread import TaskPool as ThreadPool
from celery.worker import WorkController

from flowengine.assembly.launcher import EngineLauncher
from flowengine.assembly.process_lock import ProcessLock, lock_is_free
from flowengine.authoring import event_facet_names
from flowengine.dispatch import LocalNotifier
from flowengine.engine import Engine
from flowengine.engine.recovery import sweep
from flowengine.settings import Settings
from flowengine.store import Database, ensure_schema, servers
from flowengine.store.claims import WorkerIdentity
from flowengine.store.servers import ServerDefinition, ServerState
from flowengine.tasks import register_celery_tasks
from flowengine.worker import Spool, TaskWorker
from flowengine.worker.script_runner import offer_scripts

log = logging.getLogger("flowengine")

_PATIENCE = 2.0  # seconds that running facets get when the engine is closed


_all_open: weakref.WeakSet[Embedded] = weakref.WeakSet()


def _abandon_in_child() -> None:
    for embedded in list(_all_open):
        embedded.abandon()


os.register_at_fork(after_in_child=_abandon_in_child)


class Embedded:
    """An engine with its own workers, in one process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        offer_scripts(settings)
        self.database = Database(settings.database_url)
        ensure_schema(self.database, upgrade=self.database.is_sqlite)
        boot_id = uuid.uuid4().hex
        self._boot_lock = self._lock_boot(boot_id)
        self._server = self._register(boot_id)
        queue = f"flowengine.{boot_id}"  # the in-process transport is shared by the whole process
        self._app = _celery_app(queue, settings)
        self._notifier = LocalNotifier(self._app, answerers=settings.concurrency, queue=queue)
        self.engine = Engine(self.database, notifier=self._notifier, settings=settings)
        identity = WorkerIdentity(self._server.uuid, boot_id, os.getpid())
        self._task_worker = TaskWorker(self.engine, identity, event_facet_names)
        register_celery_tasks(self._app, self)
        self._stop = threading.Event()
        self._last_beat = self._awake_since = time.monotonic()
        self._spool = Spool(settings.spool_directory)
        self._worker = self._start_worker()
        self._watchdog = _in_background("watchdog", self._watch)
        _before_pools_are_joined(self._task_worker.claim_no_more)
        atexit.register(self.close)
        _all_open.add(self)

    # --- behind the doorways ---

    def drain(self, task_list: str, wake: int, hops: int | None = None) -> None:
        self._notifier.heard(task_list)
        with _no_current_app(self._app):
            self._task_worker.drain(task_list, wake)

    def work(self, task_list: str, task_ids: list[str]) -> None:
        with _no_current_app(self._app):
            self._task_worker.work(task_list, task_ids)

    def evaluate(self, run_id: str) -> None:
        with _no_current_app(self._app):
            self._task_worker.advance(run_id)

    def execute(self, workflow: str, inputs: dict[str, Any], key: str | None) -> None:
        EngineLauncher(self.engine).start_named(workflow, inputs, key)

    def watch(self) -> None:
        sweep(self.engine, event_facet_names(), self._is_dead)

    def _start_worker(self) -> threading.Thread:
        return _in_background("worker", _worker(self._app, self.settings.concurrency).start)

    # --- being known ---

    def _lock_boot(self, boot_id: str) -> ProcessLock | None:
        if not self.database.is_sqlite or self.database.is_in_memory:
            return None
        return ProcessLock(self._boots(), boot_id)

    def _boots(self) -> Path:
        return Path(f"{self.database.url.database}.boots").absolute()

    def _register(self, boot_id: str) -> ServerDefinition:
        server = ServerDefinition(
            uuid=uuid.uuid4().hex,
            server_group="default",
            service_name="flowengine-embedded",
            server_name=socket.gethostname(),
            handlers=event_facet_names(),
            state=ServerState.RUNNING,
            boot_id=boot_id,
            pid=os.getpid(),
            lock_file=str(self._boot_lock.path) if self._boot_lock else None,
        )
        with self.database.write() as connection:
            server.start_time = server.ping_time = self.database.now(connection)
            servers.register(connection, server)
        return server

    def _beat(self) -> None:
        """Write a heartbeat when it is time, or when code was imported since the last."""
        names = event_facet_names()
        age = time.monotonic() - self._last_beat
        if age < self.settings.heartbeat_interval and names == self._server.handlers:
            return
        self._server.handlers = names
        with self.database.write() as connection:
            servers.beat(connection, self._server, self.database.now(connection))
        self._last_beat = time.monotonic()

    # --- the watchdog ---

    def _watch(self) -> None:
        last_look = self._awake_since
        while True:
            try:
                now = time.monotonic()
                if now - last_look > self.settings.heartbeat_interval:
                    # We slept: others may have beaten unheard. Nobody is dead on our word yet.
                    self._awake_since = now
                last_look = now
                if not self._worker.is_alive() and not self._stop.is_set():
                    log.error("the worker thread died; another takes its place")
                    self._worker = self._start_worker()
                self._beat()
                try:
                    self._spool.deliver(self.engine)
                finally:
                    self._notifier.forget()
                    sweep(self.engine, event_facet_names(), self._is_dead)
            except Exception:
                if self._stop.is_set():
                    return
                log.exception("the watchdog stumbled", extra={"action": "watchdog_stumbled"})
            if self._stop.wait(self.settings.watchdog_interval):
                return

    def _is_dead(self, server: ServerDefinition) -> bool:
        if server.uuid == self._server.uuid:
            return False
        if server.lock_file is not None:
            # Beside the database, as we see it: another container may have it elsewhere.
            return lock_is_free(self._boots() / Path(server.lock_file).name)
        max_wait = self.settings.server_timeout
        if time.monotonic() - self._awake_since < max_wait:
            return False
        return self.database.now() - server.ping_time > max_wait * 1000

    # --- the end ---

    def close(self) -> None:
        """Stop working, hand back what is not finished, and leave."""
        if self._stop.is_set():
            return
        self._stop.set()
        atexit.unregister(self.close)
        self._task_worker.stop(_PATIENCE)
        self._watchdog.join(timeout=_PATIENCE)
        try:
            with self.database.write() as connection:
                servers.leave(connection, self._server.uuid)
        finally:  # a free lock says the same
            if self._boot_lock:
                self._boot_lock.let_go()
            self.engine.close()

    def abandon(self) -> None:
        """Forget all this in a forked child: it is the parent's.

        The child has inherited the lock's descriptor, the connections and the exit handler.
        Used there, they would let a dead parent look alive, or a living one leave.
        """
        atexit.unregister(self.close)
        self._stop.set()
        self._task_worker.claim_no_more()
        if self._boot_lock:
            self._boot_lock.abandon()
        self.database.engine.dispose(close=False)


def _celery_app(queue: str, settings: Settings) -> Celery:
    app = Celery("flowengine.embedded", set_as_current=False, fixups=[])
    app.conf.update(
        broker_url="memory://localhost",
        result_backend="cache+memory://",
        broker_transport_options={"polling_interval": settings.polling_interval},
        broker_connection_retry_on_startup=True,
        task_default_queue=queue,
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
    )
    # Celery imports these when it first needs them, in threads of its own. A process that forks
    # meanwhile would have a child that waits for the end of that import for ever.
    app.backend  # noqa: B018 - an assertion would be gone under `python -O`
    import_module("celery.worker.strategy")
    return app


class _Pool(ThreadPool):  # type: ignore[misc]
    """Threads whose current app is ours: Celery looks a task up in the current app.

    A worker of the command line makes its app the default of the whole process. Here that
    place may be the user's own app's.
    """

    app: Celery
    #: A flag of the whole process: set, the user's own code could wait for no Celery result.
    task_join_will_block = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.executor = ThreadPoolExecutor(self.limit, "flowengine", self.app.set_current)

    def on_apply(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().on_apply(*args, **kwargs)
        except RuntimeError:
            return None  # Python is ending: a bell that nobody answers costs nothing


@contextmanager
def _no_current_app(app: Celery) -> Iterator[None]:
    """Let code that a facet calls find the process's own Celery app, not ours."""
    _state._set_current_app(None)
    try:
        yield
    finally:
        app.set_current()


def _worker(app: Celery, concurrency: int) -> WorkController:
    return WorkController(
        app=app,
        pool_cls=type("Pool", (_Pool,), {"app": app}),
        concurrency=concurrency,
        without_heartbeat=True,
        without_gossip=True,
        without_mingle=True,
    )


def _in_background(name: str, target: object) -> threading.Thread:
    thread = threading.Thread(target=target, name=f"flowengine-{name}", daemon=True)  # type: ignore[arg-type]
    thread.start()
    return thread


def _before_pools_are_joined(stop: object) -> None:
    """Run before Python, at its exit, waits for the threads of pools.

    A drain that went on claiming would keep the process from ending. Python has no public
    hook at this moment; without it the exit waits for the end of a drain's slice.
    """
    hook = getattr(threading, "_register_atexit", None)
    if hook is not None:
        hook(stop)

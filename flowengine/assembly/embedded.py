"""The embedded default: everything in this process, nothing to install or start.

A SQLite file in the working directory keeps the runs. Celery runs on its in-process transport with
a pool of threads, and recovery in the heartbeat thread. The transport loses its messages when the
process ends; the next process that opens the file finds the unfinished tasks in it. Several
processes on one file share the work.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from celery import Celery, _state, bootsteps
from celery.concurrency.thread import TaskPool as ThreadPool
from celery.worker import WorkController

from flowengine.assembly.launcher import EngineLauncher
from flowengine.assembly.process_lock import ProcessLock, lock_is_free
from flowengine.authoring import event_facet_names
from flowengine.dispatch import LocalNotifier, ProcessLoad
from flowengine.dispatch.process_transport import SCHEME
from flowengine.engine import Engine, liveness
from flowengine.engine.deaths import death_rule, lock_probe
from flowengine.engine.hooks import SIGNALS
from flowengine.engine.liveness import Death, LivenessWindow, observe
from flowengine.engine.recovery import notify_due_lists, recover
from flowengine.fork import at_fork
from flowengine.library import end_left_commands, offer_commands
from flowengine.settings import Settings
from flowengine.signals import send_signals
from flowengine.store import Database, ensure_schema
from flowengine.store.claims import WorkerIdentity
from flowengine.store.servers import ServerDefinition, ServerState
from flowengine.tasks.celery_tasks import register_celery_tasks
from flowengine.tasks.task_steps import offer_task_steps
from flowengine.worker import TaskWorker
from flowengine.worker.heartbeat import Heartbeat
from flowengine.worker.outage_log import outage_log
from flowengine.worker.script_runner import offer_scripts

log = logging.getLogger("flowengine")

_CLOSE_SECONDS = 2.0  # that running facets get when the engine is closed
_FINISH_POLL_SECONDS = 1.0


class Embedded:
    def __init__(
        self, settings: Settings, name: str = "", end: Callable[[], object] | None = None
    ) -> None:
        """`name` is that of the server; without one, the name of the machine.

        `end` is called when the database was away for longer than `alone_patience`.
        """
        self.settings = settings
        offer_scripts(settings)
        offer_commands(settings)
        offer_task_steps()
        self.database = Database(settings.database_url, schema=settings.schema)
        ensure_schema(self.database)
        boot_id = uuid.uuid4().hex
        self._locks = Path(f"{self.database.file}.boots").absolute()
        self._process_lock = ProcessLock(self._locks, boot_id) if self.database.file else None
        self._server = ServerDefinition(
            uuid=uuid.uuid4().hex,
            server_group="default",
            service_name="flowengine-embedded",
            server_name=name or socket.gethostname(),
            state=ServerState.RUNNING,
            boot_id=boot_id,
            pid=os.getpid(),
            lock_file=str(self._process_lock.path) if self._process_lock else None,
        )
        queue = f"flowengine.{boot_id}"  # the in-process transport is shared by the whole process
        self._app = _celery_app(queue, settings)
        # A server works while a thread waits for it, so more threads are of use.
        load = None if self.database.has_server else ProcessLoad()
        self._notifier = LocalNotifier(
            self._app, threads=settings.concurrency, queue=queue, load=load
        )
        self.engine = Engine(self.database, notifier=self._notifier, settings=settings)
        if settings.outcome_signals:
            self.engine.hooks.add_sink(SIGNALS, send_signals)
        identity = WorkerIdentity(self._server.uuid, boot_id, os.getpid())
        self._task_worker = TaskWorker(
            self.engine, identity, event_facet_names, promise=self._notifier.promise
        )
        register_celery_tasks(self._app, self, outage_log(settings.database_url))
        self._is_closed = False
        self._window = LivenessWindow(0, liveness.longest_unnoticed_gap(settings))
        jobs = (
            lambda _: self._restart_worker(),
            lambda _: end_left_commands(settings),
            lambda _: self.watch(),
        )
        self._heartbeat = Heartbeat(
            lambda: self.engine, settings, self._server, list, jobs, end=end
        )
        self._heartbeat.send(self.engine)
        self._worker = _WorkerThread(self._app, settings.concurrency)
        self._heartbeat.start()
        # A worker that went on claiming would keep the process from ending: at its exit Python
        # waits for the threads of pools. It has no public hook at that moment; without the hook
        # the exit waits for the end of a worker's time slice.
        if hook := getattr(threading, "_register_atexit", None):
            hook(self._task_worker.claim_no_more)
        atexit.register(self.close)
        at_fork(in_child=self.abandon)

    # --- the Celery tasks ---

    def drain(self, task_list: str, wake: int = 1, hops: int | None = None) -> None:
        self._notifier.consumed(task_list)
        with _no_current_app(self._app):
            self._task_worker.drain(task_list, wake)

    def work(self, task_list: str, task_ids: list[str]) -> None:
        with _no_current_app(self._app):
            self._task_worker.work(task_list, task_ids)

    def evaluate(self, run_id: str) -> None:
        with _no_current_app(self._app):
            self._task_worker.advance(run_id)

    def execute(
        self, workflow: str, inputs: dict[str, Any], key: str, if_failed: str, message_id: str
    ) -> str:
        launcher = EngineLauncher(self.engine)
        return launcher.start_named(workflow, inputs, key, if_failed, message_id).id

    def watch(self) -> None:
        """Run a recovery pass. A wake-up reaches this process alone, so each runs its own."""
        self._notifier.forget()
        with self.database.read() as session:
            interval = round(self.settings.watchdog_interval * 1000)
            window = self._window.observe(session.now(), interval)
            observation = observe(session, window)
        self._window = window
        silent = death_rule(self.settings, window, lock_probe(self.database))
        recover(
            self.engine, observation, lambda server: self._death(silent, server), notify_due_lists
        )

    def _death(self, silent: Death, server: ServerDefinition) -> str | None:
        if server.uuid == self._server.uuid:
            return None
        if server.lock_file is None:
            return silent(server)
        # The lock file is beside the database, which another container may mount elsewhere.
        return "has ended" if lock_is_free(self._locks / Path(server.lock_file).name) else None

    def _restart_worker(self) -> None:
        if not self._worker.is_alive() and not self._is_closed:
            log.error(
                "the worker thread of process %d, for database %s, ended; it is restarted, and due "
                "tasks wait until then",
                os.getpid(),
                self.database.name,
                extra={"action": "worker_restarted"},
            )
            self._worker = _WorkerThread(self._app, self.settings.concurrency)

    def finish(self) -> None:
        """Claim no more, and wait for the end of everything that this process executes."""
        self._task_worker.claim_no_more()
        while not self._task_worker.claimed_tasks.wait_until_idle(_FINISH_POLL_SECONDS):
            continue

    def close(self) -> None:
        """Stop working, release unfinished tasks and deregister. No thread is left.

        A facet that does not return within two seconds keeps its thread until it does.
        """
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        self._task_worker.stop(_CLOSE_SECONDS)
        self._worker.stop(self._notifier)
        try:
            self._heartbeat.stop()
        finally:  # a free lock says the same
            if self._process_lock:
                self._process_lock.release()
            self.engine.close()

    def abandon(self) -> None:
        """Give all this up in a forked child: it is the parent's.

        The child has inherited the lock's descriptor, the connections and the exit handler. If it
        used them, a dead parent would look alive, or a living one would be deregistered.
        """
        atexit.unregister(self.close)
        self._is_closed = True
        self._task_worker.claim_no_more()
        if self._process_lock:
            self._process_lock.abandon()
        self.database.engine.dispose(close=False)


def _celery_app(queue: str, settings: Settings) -> Celery:
    app = Celery("flowengine.embedded", set_as_current=False, fixups=[])
    app.conf.update(
        broker_url=f"{SCHEME}://localhost",
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
            return None  # Python is ending: the rows of an unanswered wake-up stay

    def on_terminate(self) -> None:
        self.executor.shutdown(wait=False, cancel_futures=True)

    def join(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        for thread in self.executor._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, ends - time.monotonic()))


@contextmanager
def _no_current_app(app: Celery) -> Iterator[None]:
    """Let code that a facet calls find the process's own Celery app, not ours."""
    _state._set_current_app(None)
    try:
        yield
    finally:
        app.set_current()


class _WorkerThread:
    def __init__(self, app: Celery, concurrency: int) -> None:
        self._controller = WorkController(
            app=app,
            pool_cls=type("Pool", (_Pool,), {"app": app}),
            concurrency=concurrency,
            without_heartbeat=True,
            without_gossip=True,
            without_mingle=True,
        )
        self._thread = threading.Thread(target=self._run, name="flowengine-worker", daemon=True)
        self._thread.start()
        self.is_alive = self._thread.is_alive

    def _run(self) -> None:
        self._controller.start()
        self._controller.terminate()  # in this thread: it closes the connection that it read from

    def stop(self, notifier: LocalNotifier) -> None:
        ends = time.monotonic() + _CLOSE_SECONDS
        while self._thread.is_alive() and time.monotonic() < ends:
            # Repeatedly: a consumer that starts just now sets its state to RUN.
            self._controller.consumer.blueprint.state = bootsteps.CLOSE
            notifier.forget()
            notifier.repeat({"default": 1})  # a consumer reads its state after each message
            self._thread.join(0.05)
        self._controller.pool.join(0.5)


# --- the default engine of this process, created on first use ---

_lock = threading.Lock()
_embedded: Embedded | None = None


def default_engine(settings: Settings | None = None) -> Engine:
    """Return the embedded engine of this process; the first call creates it.

    It is created with these settings, without any with those of the environment.
    """
    return default_server(settings).engine


def default_server(
    settings: Settings | None = None, name: str = "", end: Callable[[], object] | None = None
) -> Embedded:
    """Return the server of the default engine, which the first call creates with that name."""
    global _embedded
    with _lock:
        if _embedded is None:
            _embedded = Embedded(settings or Settings.from_environment(), name, end)
        return _embedded


def has_default_engine() -> bool:
    return _embedded is not None


def close_default_engine() -> None:
    """Close the default engine, if there is one; the next start creates another."""
    global _embedded
    with _lock:
        embedded, _embedded = _embedded, None
    if embedded is not None:
        embedded.close()


def _forget_in_child() -> None:
    """Drop the engine in a forked child, which does not inherit its threads."""
    global _embedded, _lock
    _embedded, _lock = None, threading.Lock()


at_fork(in_child=_forget_in_child)

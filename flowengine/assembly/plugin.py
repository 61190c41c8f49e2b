"""flowengine on a Celery app.

    app = Celery("shop", broker="redis://…")
    FlowEngine(app)

The app keeps its own configuration. From then on `workflow.start()` in this process goes through
this app, its workers run facets, and its beat runs recovery.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery, signals

from flowengine.assembly.app_addresses import (
    broker_fingerprint,
    refuse_unnamed_database,
    report_start,
    require_shared_database,
)
from flowengine.assembly.celery_patches import patch_celery
from flowengine.assembly.flower_pages import show_in_flower
from flowengine.assembly.heartbeat_step import HeartbeatStep
from flowengine.assembly.in_place import InPlaceLauncher
from flowengine.assembly.launcher import EngineLauncher
from flowengine.assembly.message_guard import bound_decompression, guard_consumers
from flowengine.assembly.missing_redis import name_missing_redis, refuse_missing_redis
from flowengine.assembly.worker_log import show_steps_in_log
from flowengine.assembly.worker_pool import executes_message, takes_part
from flowengine.assembly.worker_queues import WorkerQueues
from flowengine.authoring import event_facet_names, set_launcher_source, set_task_list_source
from flowengine.dispatch import CeleryNotifier
from flowengine.engine import Engine
from flowengine.engine.hooks import SIGNALS
from flowengine.engine.watchdog import Watchdog
from flowengine.library import offer_commands
from flowengine.message_keys import MessageKeys
from flowengine.secret_keys import set_secret_key_source
from flowengine.settings import Settings
from flowengine.signals import send_signals
from flowengine.store import Database, ensure_schema
from flowengine.store.claims import WorkerIdentity
from flowengine.tasks import celery_tasks
from flowengine.tasks.flower_events import StepEvents
from flowengine.tasks.signature_check import SignatureCheck
from flowengine.tasks.task_steps import offer_task_steps
from flowengine.worker import CircuitBreakers, TaskWorker
from flowengine.worker.orphan_guard import OrphanGuard
from flowengine.worker.outage_log import outage_log
from flowengine.worker.redis_address import redis_address
from flowengine.worker.script_runner import offer_scripts

log = logging.getLogger("flowengine")


class FlowEngine:
    """An engine whose workers are a Celery app's."""

    def __init__(self, app: Celery, *, settings: Settings | None = None) -> None:
        name_missing_redis()
        self.app = app
        self._settings = settings
        # One boot per worker: pool children are forked from here and share it.
        self._boot_id, self._server_id = uuid.uuid4().hex, uuid.uuid4().hex
        self._process: _Process | None = None
        self._check: SignatureCheck | None = None  #: once configured, if there are keys
        self._locks: dict[int, threading.Lock] = {}  #: by process: a fork may copy a held one
        self.hostname = ""  #: of the worker, once it is one
        self.main_pid = 0  #: of the worker
        self.sends_events = False
        self.queues = WorkerQueues(app)
        self._in_place: InPlaceLauncher | None = None  #: with `task_always_eager`
        app.flowengine = self
        app.steps["worker"].add(HeartbeatStep)
        if app.configured:
            self._configure(app)
        else:
            app.on_after_configure.connect(self._configure, weak=False)
        app.on_after_finalize.connect(self._register_facets, weak=False)
        signals.celeryd_init.connect(self._choose_queues, weak=False)
        signals.celeryd_after_setup.connect(self._report_worker, weak=False)
        signals.beat_init.connect(self._begin_beat, weak=False)
        signals.worker_process_init.connect(self._begin_child, weak=False)
        signals.worker_process_shutdown.connect(self._end_process, weak=False)
        set_launcher_source(self.launcher)
        set_task_list_source(self.queues.task_list)
        set_secret_key_source(lambda: self.settings.secret_keys)
        offer_task_steps()
        show_in_flower()
        patch_celery()
        guard_consumers()

    # --- configuration ---

    @property
    def settings(self) -> Settings:
        if self._settings is None:
            self._settings = Settings.from_environment(configured=self.app.conf)
        return self._settings

    def require_database(self) -> None:
        """Raise StoreError if the app has a network broker and names no database."""
        require_shared_database(self.app, self.settings)

    def _configure(self, sender: Celery, **_: Any) -> None:
        """Add the beat entry and the Celery tasks; settings of the app stay."""
        settings = self._settings or Settings.from_environment(configured=sender.conf)
        refuse_missing_redis(sender)
        offer_scripts(settings)
        offer_commands(settings)
        show_steps_in_log(settings)
        options: dict[str, Any] = {
            "queue": settings.control_queue,
            # A tick that was not consumed in time is of no use.
            "expires": max(5.0, 5 * settings.watchdog_interval),
        }
        if keys := MessageKeys(settings.message_keys):
            self._check = SignatureCheck(keys)
            options["headers"] = keys.headers(celery_tasks.WATCHDOG)
        entry = {
            "task": celery_tasks.WATCHDOG,
            "schedule": settings.watchdog_interval,
            "options": options,
        }
        schedule = dict(sender.conf.beat_schedule or {})
        sender.conf.beat_schedule = {celery_tasks.WATCHDOG: entry, **schedule}
        outages = outage_log(settings.database_url)
        celery_tasks.register_celery_tasks(sender, self, outages, self._check)

    def _register_facets(self, sender: Celery, **_: Any) -> None:
        celery_tasks.register_facets(sender, lambda: self._check)

    def _choose_queues(self, sender: str, conf: Any, options: dict[str, Any], **_: Any) -> None:
        if conf is self.app.conf:  # the signal is that of all apps
            refuse_unnamed_database(self.app, self.settings)
        bound_decompression()
        self.hostname, self.sends_events = sender, bool(options.get("task_events"))
        self.main_pid = os.getpid()
        self._register_facets(self.app)
        outages = outage_log(self.settings.database_url)
        celery_tasks.register_workflows(self.app, self, outages, self._check)
        self.queues.choose(options, self.settings.control_queue)

    def _report_worker(self, sender: str, instance: Any, **_: Any) -> None:
        if instance.app is self.app:
            who, quiet = f"worker {sender}", bool(instance.quiet)
            report_start(self.app, self.settings, who, self.consumed(), quiet=quiet)

    def _begin_beat(self, sender: Any, **_: Any) -> None:
        if sender.app is self.app:
            refuse_unnamed_database(self.app, self.settings)
            who = f"beat of app {self.app.main}"
            report_start(self.app, self.settings, who, [self.settings.control_queue])

    # --- this process ---

    @property
    def process(self) -> _Process:
        """The objects of this process. A forked child makes its own."""
        # One for all threads: claimed tasks and counters must not be split.
        with self._locks.setdefault(os.getpid(), threading.Lock()):
            if self._process is None or self._process.pid != os.getpid():
                if self._process is not None:
                    self._process.database.engine.dispose(close=False)
                self._process = _Process(self, self.settings)
            return self._process

    @property
    def engine(self) -> Engine:
        launcher = self._eager_launcher()
        return launcher.engine if launcher else self.process.engine

    def launcher(self) -> EngineLauncher:
        return self._eager_launcher() or EngineLauncher(self.process.engine)

    def _eager_launcher(self) -> InPlaceLauncher | None:
        """Return the launcher of an eager app; a test suite may make an app eager at any time."""
        if not self.app.conf.task_always_eager:
            return None
        if self._in_place is None or self._in_place.pid != os.getpid():
            self._in_place = InPlaceLauncher(self.settings, redis_of(self.app))
        return self._in_place

    def _begin_child(self, **_: Any) -> None:
        """A pool child begins: end it if its worker has been killed meanwhile, or will be."""
        if self.main_pid in (0, os.getpid()):
            return  # a pool of one process sends the signal too

        def parts() -> tuple[Engine, TaskWorker] | None:
            process = self._process
            is_own = process is not None and process.pid == os.getpid()
            return (process.engine, process.task_worker) if process and is_own else None

        OrphanGuard(self.main_pid, self.identity(), parts, executes_message).begin()

    def _end_process(self, **_: Any) -> None:
        """A pool child ends: finish its coroutines, flush its counters, remove its marker."""
        if self._process is not None and self._process.pid == os.getpid():
            self.finish_coroutines()
            self._process.task_worker.end()

    def finish_coroutines(self) -> None:
        """Wait for the async tries of this process, which no message of Celery stands for.

        Celery waits for messages that are worked on, and so does this, until a cold shutdown.
        """
        from celery.worker import state  # a client does not need it

        process = self._process
        if process is not None and process.pid == os.getpid():
            is_warm = lambda: state.should_terminate is None  # noqa: E731
            process.task_worker.async_tries.finish_running(is_warm)

    def end_logs(self) -> None:
        """Store the last lines of steps that threads of this process have run."""
        process = self._process
        if process is not None and process.pid == os.getpid() and process.task_worker.logs:
            process.task_worker.logs.end()

    def identity(self) -> WorkerIdentity:
        return WorkerIdentity(self._server_id, self._boot_id, os.getpid())

    def consumed(self) -> list[str]:
        return self.queues.consumed()

    def takes_part(self, pool: type) -> bool:
        """Return whether the worker of this process, which has this pool, runs steps."""
        own = {*self.queues.task_lists(), self.settings.control_queue}
        return takes_part(pool, filter(self.queues.consumes, own))

    # --- called by the Celery tasks ---

    def drain(self, task_list: str, wake: int = 1, hops: int | None = None) -> None:
        with self._working() as process:
            if not self._serves(task_list):
                return
            process.notifier.consumed(task_list)
            # Anybody who reaches the broker can send larger numbers.
            most = self.settings.wakeup_fanout
            wake = min(wake, most)
            process.task_worker.drain(task_list, wake)
            process.relay.relay(task_list, wake, most if hops is None else min(hops, most))

    def work(self, task_list: str, task_ids: list[str]) -> None:
        with self._working() as process:
            if self._serves(task_list):
                process.task_worker.work(task_list, task_ids)

    def _serves(self, task_list: str) -> bool:
        """Whether this worker consumes the list: a message may name any.

        A pool child does not learn of queues that are added later; the worker's row has them.
        """
        if self.queues.consumes(task_list):
            return True
        name = self.queues.name_of(task_list)
        with self.engine.database.read() as session:
            registered = session.servers.by_boot_ids([self._boot_id])
        if any(name in server.topics for server in registered):
            return True
        log.warning(
            "ignored a message for task list %.80r, which this worker does not consume",
            task_list,
            extra={"action": "message_ignored"},
        )
        return False

    def evaluate(self, run_id: str) -> None:
        with self._working() as process:
            process.task_worker.advance(run_id)

    @contextmanager
    def _working(self) -> Iterator[_Process]:
        process = self.process
        try:
            yield process
        finally:
            process.events.flush()

    def execute(
        self, workflow: str, inputs: dict[str, Any], key: str, if_failed: str, message_id: str
    ) -> str:
        return self.launcher().start_named(workflow, inputs, key, if_failed, message_id).id

    def watch(self) -> None:
        Watchdog(self.engine).tick()


def redis_of(app: Celery) -> str:
    """Return the address of the app's own Redis; empty if it has none or a list of them."""
    conf = app.conf
    candidates = (
        (conf.broker_url, conf.broker_use_ssl),
        (conf.broker_write_url, conf.broker_use_ssl),
        (conf.result_backend, conf.redis_backend_use_ssl),
    )
    addresses = (redis_address(url, tls) for url, tls in candidates if isinstance(url, str))
    return next(filter(None, addresses), "")


class _Process:
    def __init__(self, plugin: FlowEngine, settings: Settings) -> None:
        self.pid = os.getpid()
        if plugin.hostname:
            gc.freeze()  # imported objects stay alive, so the collector need not visit them
        plugin.require_database()
        self.database = Database(settings.database_url, schema=settings.schema)
        ensure_schema(self.database)
        self.notifier = CeleryNotifier(
            plugin.app,
            most=settings.wakeup_fanout,
            control_queue=settings.control_queue,
            # Starts come in bursts; each wake-up of a worker is meant for another worker.
            pause=0.0 if plugin.hostname else settings.wakeup_debounce,
            keys=MessageKeys(settings.message_keys),
        )
        self.engine = Engine(
            self.database,
            notifier=self.notifier,
            settings=settings,
            broker=broker_fingerprint(plugin.app),
        )
        if settings.outcome_signals:
            self.engine.hooks.add_sink(SIGNALS, send_signals)
        ring = settings.flower_steps
        self.events = StepEvents(plugin.app, plugin.hostname, ring)
        shows = ring > 0 and (plugin.sends_events or plugin.app.conf.worker_send_task_events)
        self.task_worker = TaskWorker(
            self.engine,
            plugin.identity(),
            event_facet_names,
            plugin.consumed,
            show=self.events.show if shows else None,
            flush=self.events.flush,
            breakers=CircuitBreakers(settings, redis_of(plugin.app), shares=True),
        )
        self.relay = celery_tasks.WakeupRelay(
            self.engine, plugin.identity(), self.task_worker.async_tries.declined
        )

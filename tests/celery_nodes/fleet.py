"""Workers, beats and a client around one broker and one database."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import kombu.pools
from celery import Celery

from flowengine.assembly import FlowEngine
from flowengine.authoring import set_launcher_source
from flowengine.engine import Engine, Run
from flowengine.settings import Settings
from flowengine.store import Database, ensure_schema
from tests.celery_nodes.containers import (
    LocalBeat,
    LocalNode,
    LocalRabbit,
    LocalRedis,
    LocalWorker,
    write_files,
)
from tests.celery_nodes.processes import GuardedProcess

ROOT = Path(__file__).parent.parent.parent
PYTHONPATH = os.pathsep.join((str(ROOT), str(ROOT / "tests" / "startup")))
T = TypeVar("T")

#: Short intervals, so that recovery takes seconds here and not minutes.
INTERVALS = {
    "FLOWENGINE_WATCHDOG_INTERVAL": "0.3",
    "FLOWENGINE_HEARTBEAT_INTERVAL": "1",
    "FLOWENGINE_SERVER_TIMEOUT": "4",
    "FLOWENGINE_CANCEL_GRACE": "0.5",
    "FLOWENGINE_WAKEUP_REPEAT": "1",
    "FLOWENGINE_LOG_WAKEUPS": "on",  # tests count them
}


def clean_environment() -> dict[str, str]:
    """The environment of this process without settings of flowengine and Celery."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("FLOWENGINE_", "CELERY_", "PYTEST_"))
    }
    programs = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', os.defpath)}"
    return {**kept, "PATH": programs, "PYTHONPATH": PYTHONPATH, "PYTHONUNBUFFERED": "1"}


def until(
    condition: Callable[[], T], what: str = "it", seconds: float = 30, pause: float = 0.05
) -> T:
    """Return the value of the condition as soon as it is true; fail after some seconds."""
    ends = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < ends, f"{what} did not happen within {seconds:g} s"
        time.sleep(pause)
    return found


class Fleet:
    """All nodes that work on one database; `close` ends them."""

    def __init__(
        self,
        directory: Path,
        *,
        broker: LocalRedis | LocalRabbit,
        backend: LocalRedis | None,
        database_url: str,
        imports: str = "",
        **environment: str,
    ) -> None:
        self.directory, self.broker, self.backend = directory, broker, backend
        self.database_url = database_url
        self.traces = directory / "traces"
        self.traces.mkdir(parents=True)
        self.environment = {
            **clean_environment(),
            **INTERVALS,
            "FLOWENGINE_BROKER_URL": broker.url,
            # Without a result backend of its own, results go through the broker, without chords.
            "FLOWENGINE_RESULT_BACKEND": backend.url if backend else "rpc://",
            "FLOWENGINE_DATABASE_URL": database_url,
            "FLOWENGINE_IMPORTS": imports,
            "TRACES": str(self.traces),
            **environment,
        }
        self.workers: list[LocalWorker] = []
        self.beats: list[LocalBeat] = []
        database = Database(database_url)
        ensure_schema(database, upgrade=True)
        database.close()
        self.app, self.engine = client_of(self.environment)

    # --- processes ---

    def add_worker(
        self,
        name: str,
        *args: str,
        app: str = "flowengine",
        content: Mapping[str, bytes] | None = None,
        wait: bool = True,
        **environment: str,
    ) -> LocalWorker:
        """Start a worker, in a directory of its own."""
        command = LocalWorker.command("-n", f"{name}@%h", *args, app=app)
        process = self._process(name, command, content, environment, "ready.")
        worker = LocalWorker(process)
        self.workers.append(worker)
        worker.start(wait=wait)
        return worker

    def add_beat(
        self,
        name: str = "beat",
        app: str = "flowengine",
        content: Mapping[str, bytes] | None = None,
    ) -> LocalBeat:
        process = self._process(name, LocalBeat.command(app=app), content, {}, "beat: Starting...")
        beat = LocalBeat(process)
        self.beats.append(beat)
        beat.start()
        return beat

    def _process(
        self,
        name: str,
        command: list[str],
        content: Mapping[str, bytes] | None,
        environment: Mapping[str, str],
        ready_prompt: str,
    ) -> GuardedProcess:
        directory = self.directory / name
        write_files(directory, dict(content or {}))
        return GuardedProcess(
            command,
            name=name,
            directory=directory,
            environment={**self.environment, **environment},
            ready_prompt=ready_prompt,
        )

    @property
    def nodes(self) -> list[LocalNode]:
        return [*self.workers, *self.beats]

    def heal(self) -> None:
        """Restart the nodes that a test has killed, and continue those it has suspended."""
        for node in self.nodes:
            if node.is_alive():
                node.thaw()
            else:
                node.start(wait=False)
        for node in self.nodes:
            node.wait_until_ready()

    def logs(self) -> str:
        return "".join(node.logs() for node in self.nodes)

    def count_logged(self, text: str) -> int:
        return self.logs().count(text)

    def close(self) -> None:
        for node in self.nodes:
            node.stop()
        self.engine.close()
        self.app.close()
        # The next broker may get the port of this one, and pooled connections would be dead.
        kombu.pools.reset()

    # --- work ---

    def start(self, workflow: Any, *, key: str | None = None, **inputs: Any) -> Run[Any]:
        """Start a run, as a web process would."""
        return self.engine.start(workflow.program(), workflow.name, inputs, key=key)

    def begun(self, name: str) -> list[int]:
        """The ids of the processes in which the facet of this name has started, in order."""
        found = sorted(self.traces.glob(f"begun-{name}-*"), key=lambda path: path.stat().st_mtime)
        return [int(path.name.rpartition("-")[2]) for path in found]

    def let_go(self, name: str) -> None:
        (self.traces / f"go-{name}").touch()

    def let_all_go(self) -> None:
        """Let every held facet end, so that no worker waits for a test that has ended."""
        for path in self.traces.glob("begun-*"):
            self.let_go(path.name.split("-")[1])


def client_of(environment: Mapping[str, str]) -> tuple[Celery, Engine]:
    """An app and an engine that start runs and do not work on them."""
    app = Celery(
        "client",
        broker=environment["FLOWENGINE_BROKER_URL"],
        backend=environment["FLOWENGINE_RESULT_BACKEND"],
        set_as_current=False,
    )
    before = set_launcher_source(None)
    try:
        flowengine = FlowEngine(app, settings=Settings.from_environment(environment))
    finally:
        set_launcher_source(before)
    return app, flowengine.engine

"""The contenders: their workloads, their durability, and a handle on their processes."""

from __future__ import annotations

import json
import select
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.processes import ROOT, GuardedProcess, clean_environment
from benchmarks.servers import Servers

#: Seconds for a contender to get ready.
READY = 120.0

ENVIRONMENTS = ROOT / ".venv-bench"


@dataclass(frozen=True)
class Entry:
    """A contender, before it has started."""

    name: str
    title: str
    module: str  #: under benchmarks.contenders
    environment: str  #: the virtual environment under .venv-bench
    durability: str
    needs: tuple[str, ...] = ()  #: of: postgres, redis, sqlite
    #: Workloads it can run, with the largest size it is asked for.
    largest: tuple[tuple[str, int], ...] = ()

    @property
    def is_durable(self) -> str:
        """In one word."""
        words = {"durable": "yes", "NOT": "no", "in": "in part"}
        return words.get(self.durability.replace(":", "").split()[0], "–")

    def takes(self, workload: str, size: int) -> bool:
        return size <= dict(self.largest).get(workload, -1)


_ANY = 10**9
_ALL = tuple((name, _ANY) for name in ("W2", "W3", "W4", "W4 idle", "W5 light", "W5 long", "W6"))

#: Durable functions: rivals are held against them by W3 and W4.
_FUNCTIONS = tuple((name, _ANY) for name in ("W8", "W8 reads", "W8 tasks", "W8 runs"))

CONTENDERS = {
    entry.name: entry
    for entry in (
        Entry(
            "flowengine",
            "flowengine: Celery on Redis + PostgreSQL",
            "flowengine_celery",
            "flowengine",
            "durable: every step committed, fsync on",
            ("postgres", "redis"),
            (*_ALL, ("W4 together", _ANY), ("W7", _ANY), *_FUNCTIONS),
        ),
        Entry(
            "canvas",
            "Celery canvas on Redis",
            "celery_canvas",
            "flowengine",
            "NOT durable: state in messages and an unsaved Redis",
            ("redis",),
            (("W1", _ANY), *_ALL),
        ),
        Entry(
            "dbos-steps",
            "DBOS on PostgreSQL: steps of one workflow",
            "dbos_steps",
            "dbos",
            "durable: every step committed, fsync on",
            ("postgres",),
            (*_ALL, ("W7", _ANY)),
        ),
        Entry(
            "dbos-queue",
            "DBOS on PostgreSQL: queued, 2 processes",
            "dbos_queue",
            "dbos",
            "durable: every queued step committed, fsync on",
            ("postgres",),
            (("W2", _ANY), ("W4", _ANY), ("W4 idle", _ANY), ("W6", 1000)),
        ),
        Entry(
            "flowengine-sqlite",
            "flowengine: embedded on SQLite",
            "flowengine_embedded",
            "flowengine",
            "durable: every step committed; WAL, synchronous FULL",
            (),
            (
                *(("W2", 5000), ("W3", 1000), ("W4", 500), ("W4 idle", _ANY), ("W6", 1000)),
                *_FUNCTIONS,
            ),
        ),
        Entry(
            "dbos-sqlite",
            "DBOS on SQLite: steps of one workflow",
            "dbos_steps",
            "dbos",
            "durable: every step committed; rollback journal, synchronous FULL",
            ("sqlite",),
            (("W2", 1000), ("W3", 1000), ("W4", 500), ("W4 idle", _ANY)),
        ),
        Entry(
            "pyworkflow",
            "PyWorkflow: Celery on Redis + PostgreSQL",
            "pyworkflow_celery",
            "pyworkflow",
            "durable: an event log, committed, fsync on",
            ("postgres", "redis"),
            (("W2", 100), ("W3", 100), ("W4", 10)),
        ),
        Entry(
            "prefect",
            "Prefect: a server on PostgreSQL, tasks in threads of one process",
            "prefect_server",
            "prefect",
            "in part: the states of tasks are recorded, their results are not",
            ("postgres",),
            (("W2", 100), ("W3", 100), ("W4", 10)),
        ),
        Entry(
            "pure",
            "no engine: the computation alone",
            "pure",
            "flowengine",
            "nothing to keep",
            (),
            (("W5 light", _ANY), ("W5 long", _ANY)),
        ),
    )
}


class ContenderFailed(Exception):
    """It gave an error, a wrong answer, or none in time."""


class Contender:
    """A contender's running program."""

    def __init__(self, entry: Entry, servers: Servers, **environment: str) -> None:
        self.entry = entry
        self.directory = Path(tempfile.mkdtemp(prefix=f"bench-{entry.name}-"))
        self.database: str | None = None
        interpreter = ENVIRONMENTS / entry.environment / "bin" / "python"
        self._process = GuardedProcess(
            [str(interpreter), "-m", f"benchmarks.contenders.{entry.module}"],
            directory=self.directory,
            environment=clean_environment(**self._addresses(servers), **environment),
            log=self.directory / "driver.log",
            talks=True,
        )
        try:
            hello = self._read(READY)
        except ContenderFailed:
            self.stop()
            raise
        self.versions: dict[str, str] = hello["versions"]
        self.settings: dict[str, Any] = hello["settings"]

    def _addresses(self, servers: Servers) -> dict[str, str]:
        found: dict[str, str] = {}
        if "redis" in self.entry.needs:
            found |= {"BENCH_BROKER": servers.new_broker(), "BENCH_BACKEND": servers.new_broker()}
        if "postgres" in self.entry.needs:
            self.database = servers.new_database()
            found["BENCH_DATABASE"] = self.database
        if "sqlite" in self.entry.needs:
            found["BENCH_DATABASE"] = f"sqlite:///{self.directory / 'bench.sqlite'}"
        return found

    def ask(self, do: str, size: Any, *, max_wait: float) -> dict[str, Any]:
        """Have a workload run; return its time and its result."""
        self._process.stdin.write(json.dumps({"do": do, "size": size}).encode() + b"\n")
        self._process.stdin.flush()
        return self._read(max_wait)

    def _read(self, max_wait: float) -> dict[str, Any]:
        # Nothing but answers comes on this pipe, one at a time, so there is nothing buffered.
        ready, _, _ = select.select([self._process.stdout], [], [], max_wait)
        if not ready:
            raise ContenderFailed(f"no answer within {max_wait:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise ContenderFailed(f"it has ended: {self._process.last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ContenderFailed(answer["error"])
        return answer

    def processes(self) -> list[psutil.Process]:
        """All that belongs to it, without the guards."""
        below = psutil.Process(self._process.pid).children(recursive=True)
        return [process for process in below if process.name() != "bash"]

    def freeze(self) -> None:
        """Stop it where it stands, so that its idling disturbs nobody."""
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        for process in self.processes():
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                continue

    def stop(self) -> None:
        self._process.stop()
        _wait_until_gone(self.directory)
        shutil.rmtree(self.directory, ignore_errors=True)


def _wait_until_gone(directory: Path) -> None:
    """Wait for guards below ours: each ends after the one above it."""
    ends = time.monotonic() + 10
    while time.monotonic() < ends:
        if not any(_works_in(process, directory) for process in psutil.process_iter()):
            return
        time.sleep(0.05)


def _works_in(process: psutil.Process, directory: Path) -> bool:
    try:
        return bool(process.cwd() == str(directory)) and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False

"""Workers that print numbered lines and are killed, while PostgreSQL goes away and comes back."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from flowengine import current_step, event_facet, foreach, workflow
from flowengine.assembly.embedded import close_default_engine, default_engine
from flowengine.engine import Engine, Run
from flowengine.settings import Settings
from flowengine.worker.orphaned_log_lines import deliver_orphaned_log_lines
from tests.fork_server import context

WAIT = 300.0  #: seconds in which everything must be done


@event_facet(name="lines.print", max_losses=1_000)
def printed(n: int, count: int) -> int:
    """Print lines; each that was printed is a byte in a file, written after it."""
    attempt = current_step().attempt
    counted = os.open(
        Path(os.environ["LINES_DIRECTORY"]) / f"{n}-{attempt}", os.O_WRONLY | os.O_CREAT, 0o600
    )
    for number in range(1, count + 1):
        print(f"{n} {attempt} {number}")
        os.write(counted, b"x")
        if number % 20 == 0:
            time.sleep(0.01)
    os.close(counted)
    return count


@workflow(name="lines.all")
def all_lines(ns: list[int], count: int) -> list[int]:
    return foreach(ns, lambda n: printed(n, count))


def settings_of(url: str, directory: Path) -> Settings:
    return Settings(
        database_url=url,
        spool_directory=str(directory / "spool"),
        concurrency=1,
        watchdog_interval=0.3,
        heartbeat_interval=1.0,
        server_timeout=4.0,
    )


def work(url: str, directory: Path) -> None:
    """Work until SIGTERM."""
    os.environ["LINES_DIRECTORY"] = str(directory / "printed")
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - to the end of the process
    ends = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ends.set())
    default_engine(settings_of(url, directory))
    ends.wait()
    close_default_engine()


@dataclass
class Workers:
    url: str
    directory: Path
    running: list[Any] = field(default_factory=list)

    def start(self, number: int) -> None:
        for _ in range(number):
            child = context.Process(target=work, args=(self.url, self.directory))
            child.start()
            self.running.append(child)

    def kill_one(self, draw: Random) -> None:
        child = self.running.pop(draw.randrange(len(self.running)))
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        self.start(1)

    def end(self) -> None:
        for child in self.running:
            child.terminate()
        for child in self.running:
            child.join(20)
            child.kill()


def all_printed(directory: Path) -> int:
    return sum(path.stat().st_size for path in (directory / "printed").iterdir())


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + WAIT
    while not is_so():
        assert time.monotonic() < ends, f"no {what} in {WAIT} s"
        time.sleep(0.02)


def check(engine: Engine, run: Run[Any], directory: Path) -> str:
    """Compare the log of a run with the lines that were printed; return the counts."""
    left = deliver_orphaned_log_lines(engine)
    found: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for line in run.logs():
        n, attempt, number = line.text.split()
        found[f"{n}-{attempt}"].append((line.number, int(number)))
    tries = {path.name: path.stat().st_size for path in (directory / "printed").iterdir()}
    assert found.keys() <= tries.keys()
    for name, printed_of_try in tries.items():
        numbers = [number for _, number in found[name]]
        assert numbers == list(range(1, len(numbers) + 1)), f"{name}: once and in order"
        assert [at for at, _ in found[name]] == numbers
        # A process may be killed between a line and the byte that counts it.
        assert printed_of_try <= len(numbers) <= printed_of_try + 1, (name, printed_of_try)
    total = sum(map(len, found.values()))
    assert list((directory / "spool" / "logs").glob("*")) == []
    return f"{total:,} lines of {len(tries)} tries, each once and in order; {left} chunks left"

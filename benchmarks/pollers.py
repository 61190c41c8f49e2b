"""Measures how soon an idle AgentPoller begins a task, beside a plain Celery task.

In turns, one at a time on idle processes: a task is sent to a Celery worker (its default pool,
Redis), or a run of one step is started on PostgreSQL. A message is what `apply_async` commits, so
Celery's clock runs from that call. The clock of the poller runs from the answer to the commit of
the task's row; PostgreSQL sends the notification at the same time. Both stop when the body reads
the clock, in a process of its own on this machine. The second table has both times from the call:
there the engine also stores the run, synced to the disk. The claim of the poller is synced too, so
other writers to the disk are part of its time, and not of Celery's.

    PYTHONPATH=. python benchmarks/pollers.py [number of tasks]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median, quantiles

from celery import Celery

from flowengine import load_program
from flowengine.dispatch.notifier import NullNotifier
from flowengine.engine import Engine
from flowengine.store import Database, ensure_schema
from tests.servers import PostgresServer, RedisServer

TARGET = 0.5  #: ratio of the medians, from the commit
_PAUSE = 0.05  # seconds between two tasks: every one meets idle processes

_PROGRAM = """
namespace bench {
  event facet Stamp(file: String) => (at: Double)
  workflow One(file: String) => (at: Double) andThen {
    stamp = Stamp(file = $.file)
    yield One(at = stamp.at)
  }
}
"""

_POLLER = """
import sys, time
from flowengine.sdk import AgentPoller

def stamp(payload):
    at = time.monotonic()
    with open(payload["file"], "w") as file:
        file.write(repr(at))
    return {"at": at}

poller = AgentPoller.connect(sys.argv[1])
poller.register("bench.Stamp", stamp)
poller.start()
"""

_CELERY = """
import sys, time
from celery import Celery

app = Celery("plain", broker=sys.argv[1])

@app.task(name="stamp")
def stamp(name):
    at = time.monotonic()
    with open(name, "w") as file:
        file.write(repr(at))

app.worker_main(["worker", "--concurrency=2", "-l", "ERROR"])
"""


def began(file: Path) -> float:
    """Return the time that the body has written to the file."""
    ends = time.monotonic() + 30
    while time.monotonic() < ends:
        if file.exists() and (text := file.read_text()):
            return float(text)
        time.sleep(0.001)
    raise SystemExit("the body of a task did not begin within 30 seconds")


class Commits(NullNotifier):
    """Reads the clock when the engine has committed and begins to notify."""

    last = 0.0

    def notify(self, due: Mapping[str, int]) -> None:
        self.last = time.monotonic()


def timed(send: Callable[[str], object], file: Path, commits: Commits) -> tuple[float, float]:
    """Return the milliseconds until the body begins, from the commit and from the call."""
    file.unlink(missing_ok=True)
    called = commits.last = time.monotonic()
    send(str(file))
    at = began(file)
    time.sleep(_PAUSE)
    return (at - commits.last) * 1000, (at - called) * 1000


def measure(number: int, directory: Path) -> float:
    postgres, redis = PostgresServer(), RedisServer()
    processes: list[subprocess.Popen[bytes]] = []
    try:
        url = postgres.new_database()
        database = Database(url)
        ensure_schema(database, upgrade=True)
        silent = subprocess.DEVNULL
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
        for text, address in ((_POLLER, url), (_CELERY, redis.url)):
            command = [sys.executable, "-c", text, address]
            processes.append(
                subprocess.Popen(
                    command, env=environment, cwd=directory, stdout=silent, stderr=silent
                )
            )
        commits = Commits()
        engine, app = Engine(database, notifier=commits), Celery("plain", broker=redis.url)
        (directory / "bench.afl").write_text(_PROGRAM)
        program = load_program(directory / "bench.afl")
        contenders: dict[str, Callable[[str], object]] = {
            "AgentPoller": lambda file: engine.start(program, "bench.One", {"file": file}),
            "Celery task": lambda file: app.send_task("stamp", [file], ignore_result=True),
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
        for turn in range(number + 10):
            for name, send in contenders.items():
                one = timed(send, directory / "stamp", commits)
                if turn >= 10:  # the first ones open connections
                    found[name].append(one)
        engine.close()
        app.close()
    finally:
        for process in processes:
            process.kill()
            process.wait()
        redis.stop()
        postgres.stop()
    return printed(found)


def printed(found: dict[str, list[tuple[float, float]]]) -> float:
    ratios = []
    for index, since in enumerate(("from the commit", "from the call")):
        print(since)
        medians = []
        for name, times in found.items():
            values = [one[index] for one in times]
            medians.append(median(values))
            p99 = quantiles(values, n=100)[98]
            print(f"  {name:12} p50 {medians[-1]:6.2f} ms   p99 {p99:6.2f} ms   ({len(values)})")
        ratios.append(medians[0] / medians[1])
        print(f"  ratio of the medians {ratios[-1]:.2f}")
    print(f"target from the commit: {TARGET:g}")
    return ratios[0]


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as scratch:
        sys.exit(measure(count, Path(scratch)) > TARGET)

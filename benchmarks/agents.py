"""Measures turns of agents beside a plain Celery task, LangGraph and DBOS, in one sitting.

A turn is three model calls with a call of a tool between each two (benchmarks/agent_flows.py). The
first table has the time from an answer to the next model call, one turn at a time on idle
processes, and the time of `task.delay().get()` on the same worker. The second has the turns per
second of many turns at once, two working processes for each contender. All of them keep every step
in PostgreSQL before the next one begins. The tool is a pure function, and flowengine is measured
with both of its declarations: with `effects=False`, by which the targets are judged, and without.
The contenders take turns, three rounds, each with new processes and a new database: a machine that
others share is not as fast at every moment.

    make bench-agents [ARGS="number of turns"]
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.agent_flows import gaps
from benchmarks.servers import Servers, private_servers

ROOT = Path(__file__).parent.parent
CONTENDERS = "benchmarks.agent_contenders"
LATENCY, LANGGRAPH, DBOS = 1.5, 1.0, 2.0  #: targets: ratios to the plain task, and of turns/s
_ROUNDS, _IDLE_TURNS, _THREADS = 3, 60, 4


@dataclass
class Figures:
    """The figures of one contender, of all rounds."""

    name: str
    idle: list[float] = field(default_factory=list)  #: seconds from an answer to the next call
    rates: list[float] = field(default_factory=list)  #: turns per second, of each round

    @property
    def rate(self) -> float:
        return median(self.rates)

    @property
    def p50(self) -> float:
        return median(self.idle) * 1000

    @property
    def p99(self) -> float:
        return quantiles(self.idle, n=100)[98] * 1000

    def add(self, idle: list[float], rate: float) -> None:
        self.idle += idle
        self.rates.append(rate)


#: The module of the plain task, in the worker's process.
_PLAIN = (
    "from celery import shared_task\n@shared_task(name='bench.plain')\ndef plain(x): return x\n"
)


def environment(contender: str) -> str:
    return str(ROOT / ".venv-bench" / contender / "bin" / "python")


@contextmanager
def process(*command: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    given = {**os.environ, "PYTHONPATH": str(ROOT), **more}
    pipe = subprocess.PIPE
    child = subprocess.Popen(command, env=given, text=True, stdin=pipe, stdout=pipe)
    try:
        yield child
    finally:
        child.terminate()
        child.wait(30)


def wait_for_line(child: subprocess.Popen[str], text: str) -> None:
    assert child.stdout is not None
    line = child.stdout.readline()
    assert line.strip() == text, f"a contender said {line!r}"


def go(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def flowengine(servers: Servers, scratch: Path, turns: int) -> dict[str, Any]:
    """Return the figures by agent, and the seconds of plain tasks on the same worker."""
    broker = servers.new_broker()
    where = {
        "FLOWENGINE_DATABASE_URL": servers.new_database(),
        "FLOWENGINE_BROKER_URL": broker,
        "FLOWENGINE_RESULT_BACKEND": broker,
        "FLOWENGINE_IMPORTS": f"{CONTENDERS}.flowengine_agents,bench_plain",
        "BENCH_CALLS": str(scratch / "flowengine.calls"),
        "PYTHONPATH": f"{ROOT}:{scratch}",
    }
    shutil.copy(ROOT / "celeryconfig.py", scratch)
    (scratch / "bench_plain.py").write_text(_PLAIN)
    given = {**os.environ, **where}
    upgrade = [sys.executable, "-m", "flowengine", "db", "upgrade"]
    subprocess.run(upgrade, check=True, cwd=scratch, env=given, stdout=subprocess.DEVNULL)
    celery = (sys.executable, "-m", "celery", "-A", "flowengine")
    with (
        process(*celery, "worker", "-c", "2", "-l", "ERROR", **where),
        process(*celery, "beat", "-l", "ERROR", "-s", str(scratch / "beat"), **where),
    ):
        program = [sys.executable, "-m", f"{CONTENDERS}.flowengine_sender"]
        numbers = [str(_IDLE_TURNS), str(turns)]
        sent = subprocess.run([*program, *numbers], check=True, env=given, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(sent.stdout)
    return found


def langgraph(servers: Servers, scratch: Path, turns: int) -> tuple[list[float], float]:
    database = servers.new_database().replace("+psycopg", "")
    calls = str(scratch / "langgraph.calls")
    program = (environment("langgraph"), "-m", f"{CONTENDERS}.langgraph_turns", database)

    def run(label: str, count: int, processes: int, threads: int) -> float:
        with _several(
            [
                (*program, f"{label}{number}-", str(count // processes), str(threads))
                for number in range(processes)
            ],
            BENCH_CALLS=calls,
        ) as children:
            began = time.monotonic()
            for child in children:
                go(child)
            for child in children:
                wait_for_line(child, "done")
            return time.monotonic() - began

    run("warm", 2, 1, 1)
    Path(calls).unlink()
    run("idle", _IDLE_TURNS, 1, 1)
    idle = gaps(calls)
    return idle, turns / run("many", turns, 2, _THREADS)


@contextmanager
def _several(commands: list[tuple[str, ...]], **more: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Start processes one after the other: the first makes the tables."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        children = []
        for command in commands:
            children.append(stack.enter_context(process(*command, **more)))
            wait_for_line(children[-1], "ready")
        yield children


def dbos(servers: Servers, scratch: Path, turns: int) -> tuple[list[float], float]:
    where = {"BENCH_DATABASE": servers.new_database(), "BENCH_CALLS": str(scratch / "dbos.calls")}
    program = (environment("dbos"), "-m", f"{CONTENDERS}.dbos_turns")

    def send(label: str, count: int, how: str) -> float:
        given = {**os.environ, "PYTHONPATH": str(ROOT), **where}
        began = time.monotonic()
        subprocess.run([*program, "send", label, str(count), how], env=given, check=True)
        return time.monotonic() - began

    with _several([(*program, "work", str(number)) for number in range(2)], **where):
        startup = min(send("warm", 1, "one") for _ in range(3))
        Path(where["BENCH_CALLS"]).unlink()
        send("idle", _IDLE_TURNS, "one")
        idle = gaps(where["BENCH_CALLS"])
        # Without the start of the calling process.
        rate = turns / max(send("many", turns, "all") - startup, 0.001)
    return idle, rate


def report(plain: list[float], figures: list[Figures]) -> bool:
    """Print the tables; return whether the targets are met."""
    base = median(plain) * 1000
    print(f"task.delay().get(): {base:.2f} ms p50, {quantiles(plain, n=100)[98] * 1000:.1f} p99")
    print(f"{'contender':12} {'answer to next model call':>28} {'ratio':>6} {'turns/s':>9}")
    for one in figures:
        shown = f"{one.p50:.2f} ms p50, {one.p99:.1f} p99"
        print(f"{one.name:12} {shown:>28} {one.p50 / base:6.2f} {one.rate:9.1f}")
    own, _, other, queue = figures
    ratios = [
        ("latency to the plain task", own.p50 / base, own.p50 / base <= LATENCY, LATENCY),
        ("turns/s to LangGraph", own.rate / other.rate, own.rate / other.rate >= LANGGRAPH, 1.0),
        ("turns/s to DBOS queue", own.rate / queue.rate, own.rate / queue.rate >= DBOS, DBOS),
    ]
    for name, ratio, is_met, target in ratios:
        print(f"{name}: {ratio:.2f} (target {target:g}) {'met' if is_met else 'MISSED'}")
    return all(is_met for _, _, is_met, _ in ratios)


def main(turns: int) -> bool:
    names = ("flowengine", "with effects", "LangGraph", "DBOS queue")
    own, effects, lang, queue = figures = [Figures(name) for name in names]
    plain: list[float] = []
    with private_servers() as servers:
        for _ in range(_ROUNDS):
            with tempfile.TemporaryDirectory() as scratch:
                there = Path(scratch)
                found = flowengine(servers, there, turns)
                plain += found["plain"]
                own.add(*found["counter"])
                effects.add(*found["counter_with_effects"])
                lang.add(*langgraph(servers, there, turns))
                queue.add(*dbos(servers, there, turns))
    return report(plain, figures)


if __name__ == "__main__":
    sys.exit(not main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))

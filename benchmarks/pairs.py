"""Compares this checkout with another one, in pairs: is a change slower?

Both are up at the same time, on servers of one sitting, and are asked in turns: each pair is one
measurement of both, within seconds. A phase in which the machine is busy slows both, so the median
of the ratios is steady where times differ by half.

    git worktree add ../before v1.2
    make bench-pairs ARGS="../before 60"

The databases are in memory where there is room: the noise of a disk would hide the rest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.servers import Servers, private_servers

ROOT = Path(__file__).parent.parent
WORKLOADS = (("W2", "fan_out", 1000), ("W3", "chain", 1000), ("W4", "small_runs", 500))


class Contender:
    """The worker, the beat and the caller of one checkout."""

    def __init__(self, program: subprocess.Popen[str]) -> None:
        self._program = program

    def seconds(self, do: str, size: int) -> float:
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(json.dumps({"do": do, "size": size}) + "\n")
        self._program.stdin.flush()
        answer: dict[str, Any] = json.loads(self._program.stdout.readline())
        if "seconds" not in answer:
            raise SystemExit(f"a contender could not answer: {answer}")
        return float(answer["seconds"])


@contextmanager
def contender(servers: Servers, checkout: Path) -> Iterator[Contender]:
    if not (checkout / "benchmarks" / "contenders" / "flowengine_celery.py").exists():
        raise SystemExit(f"{checkout} is no checkout of flowengine with its benchmarks")
    where = {
        "BENCH_DATABASE": servers.new_database(),
        "BENCH_BROKER": servers.new_broker(),
        "BENCH_BACKEND": servers.new_broker(),
        "PYTHONPATH": str(checkout),
    }
    with tempfile.TemporaryDirectory() as scratch:
        program = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.contenders.flowengine_celery"],
            cwd=scratch,
            env={**os.environ, **where},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdout.readline()  # what it is: it is ready
        try:
            yield Contender(program)
        finally:
            program.stdin.close()
            program.wait(60)


def compare(before: Contender, after: Contender, pairs: int) -> None:
    for label, do, size in WORKLOADS:
        times: dict[str, list[float]] = {"before": [], "after": []}
        sides = [("before", before), ("after", after)]
        for _, each in sides:
            each.seconds(do, size)  # warm
        for number in range(pairs):
            for name, each in sides if number % 2 else reversed(sides):
                times[name].append(each.seconds(do, size))
        ratios = [new / old for old, new in zip(*times.values(), strict=True)]
        low, middle, high = quantiles(ratios, n=4)
        print(
            f"{label} {size}: {middle:.3f} of the time before ({low:.2f} to {high:.2f}, half of "
            f"{pairs} pairs); {median(times['before']):.3f} s before, "
            f"{median(times['after']):.3f} s after",
            flush=True,
        )


def main(other: str, pairs: int) -> None:
    with private_servers() as servers, ExitStack() as stack:
        before = stack.enter_context(contender(servers, Path(other).resolve()))
        after = stack.enter_context(contender(servers, ROOT))
        compare(before, after, pairs)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit("usage: benchmarks/pairs.py CHECKOUT [PAIRS]")
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 30)

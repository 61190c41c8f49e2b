"""Common parts of sections: a contender of their own, and a table with verdicts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.field import CONTENDERS, Contender, ContenderFailed
from benchmarks.measurements import SETTLE, warm_up
from benchmarks.servers import Commits, Servers
from benchmarks.targets import Ratio
from benchmarks.workloads import WORKLOADS

#: Seconds for one measurement of a section; the largest have 50,000 steps.
TIMEOUT = 1800.0

Say = Callable[[str], None]


@dataclass
class Section:
    """A table for people; the same as data for programs; and the targets."""

    title: str
    columns: tuple[str, ...]
    commits: list[Commits]  #: at the beginning and at the end
    rows: list[tuple[str, ...]] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    ratios: list[Ratio] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "commit_ms": [commits.durable for commits in self.commits],
            **self.data,
            "ratios": [ratio.as_json() for ratio in self.ratios],
        }


@contextmanager
def fresh(servers: Servers, name: str, **environment: str) -> Iterator[Contender]:
    """A contender in a new database, warm."""
    contender = Contender(CONTENDERS[name], servers, **environment)
    try:
        warm_up(contender, 100)
        yield contender
    finally:
        contender.stop()


def timed(contender: Contender, workload: str, size: int, times: int = 1) -> float:
    """Median milliseconds per step, of as many measurements; every result is looked at."""
    shape = WORKLOADS[workload]
    taken: list[float] = []
    for _ in range(times):
        answer = contender.ask(shape.do, size, max_wait=TIMEOUT)
        if answer["result"] != shape.expected(size):
            raise ContenderFailed(f"wrong result: {str(answer['result'])[:200]}")
        taken.append(answer["seconds"])
    return statistics.median(taken) / shape.steps(size) * 1000


@dataclass(frozen=True)
class Pair:
    """Two that were measured in turns, in milliseconds per step."""

    one: list[float]
    other: list[float]

    @property
    def medians(self) -> tuple[float, float]:
        return statistics.median(self.one), statistics.median(self.other)

    @property
    def ratio(self) -> float:
        """Other by one: the median over the turns, since a busy minute hits both of a turn."""
        return statistics.median(b / a for a, b in zip(self.one, self.other, strict=True))


def in_turns(one: Contender, other: Contender, workload: str, size: int, times: int) -> Pair:
    """Measure one, then the other, and so on; the one that waits is stopped by a signal."""
    found = Pair([], [])
    for _ in range(times):
        for contender, taken in ((one, found.one), (other, found.other)):
            contender.thaw()
            time.sleep(SETTLE)
            warm_up(contender, 10)
            taken.append(timed(contender, workload, size))
            contender.freeze()
    return found


def size_for(workload: str, steps: int) -> int:
    """The size at which a workload has about `steps` steps."""
    return steps // 2 if workload == "W6" else steps

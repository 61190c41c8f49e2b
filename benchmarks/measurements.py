"""Measurements: contenders take turns, and the ones that wait are stopped.

A round goes through all jobs, and in each job through all its contenders; then comes the next
round. So a minute in which the machine is busy with something else hits everybody alike.
Contenders stay up between their turns, as they would in production, but are stopped by a
signal, so that one's polling is not another's loss.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.field import CONTENDERS, Contender, ContenderFailed
from benchmarks.results import Figure, Results
from benchmarks.servers import Commits, Servers
from benchmarks.workloads import WORKLOADS

#: Seconds that a contender has, after it was woken, to catch up with its clocks.
SETTLE = 0.3


@dataclass(frozen=True)
class Job:
    """A workload of a size, for the contenders that take it."""

    workload: str
    size: int
    contenders: tuple[str, ...]


@dataclass
class Conditions:
    """The state of the machine while a workload was measured."""

    commits: list[Commits] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)


@dataclass
class Limits:
    """How long to go on."""

    repeats: int = 3
    once_above: float = 10.0  #: seconds; what takes longer is measured once
    max_wait: float = 600.0  #: seconds for one measurement
    ends: float | None = None  #: nothing begins after this, nor a repeat that would end after it

    def allow(self, figure: Figure, round_number: int) -> bool:
        if figure.error is not None:
            return False
        if round_number == 0:
            return self.ends is None or time.monotonic() < self.ends
        if not figure.seconds or figure.seconds[0] > self.once_above:
            return False
        return self.ends is None or time.monotonic() + figure.seconds[-1] + 1 < self.ends


class Sitting:
    """One invocation: its servers, its contenders and its results."""

    def __init__(self, servers: Servers, say: Callable[[str], None]) -> None:
        self.servers, self._say = servers, say
        self.results = Results()
        self.conditions: dict[str, Conditions] = {}
        self.reported: dict[str, Contender] = {}  #: all that were started, for the report
        self._up: dict[str, Contender] = {}

    def measure_all(self, jobs: Sequence[Job], limits: Limits) -> None:
        for round_number in range(limits.repeats):
            for job in jobs:
                turn = round_number % len(job.contenders)
                for name in (*job.contenders[turn:], *job.contenders[:turn]):
                    figure = self.results.figure(name, job.workload, job.size)
                    if limits.allow(figure, round_number):
                        self.measure(figure, limits.max_wait)

    def measure(self, figure: Figure, max_wait: float) -> None:
        """Measure once more, and print it."""
        shape = figure.shape
        try:
            contender = self.wake(figure.contender)
            figure.commits.append(self._note_conditions(figure.workload))
            answer = contender.ask(shape.do, figure.size, max_wait=max_wait)
            if answer["result"] != shape.expected(figure.size):
                raise ContenderFailed(f"wrong result: {str(answer['result'])[:200]}")
            figure.seconds.append(answer["seconds"])
            figure.latencies.extend(answer.get("latencies", ()))
            contender.freeze()
            value = f"{answer['seconds']:.3f} s (median so far {figure.value:.2f} {shape.unit})"
        except ContenderFailed as problem:
            figure.error = value = str(problem)
            self.dismiss(figure.contender)
        self._say(f"{figure.workload} {figure.size:,} {figure.contender}: {value}")

    def wake(self, name: str) -> Contender:
        """The contender of that name, up, warm and ready."""
        contender = self._up.get(name)
        if contender is None:
            contender = Contender(CONTENDERS[name], self.servers)
            self._up[name] = self.reported[name] = contender
            warm_up(contender, 100)  # wide enough for each of its processes to connect
            return contender
        contender.thaw()
        time.sleep(SETTLE)
        warm_up(contender, 10)
        return contender

    def dismiss(self, name: str) -> None:
        if (contender := self._up.pop(name, None)) is not None:
            contender.stop()

    def close(self) -> None:
        for name in list(self._up):
            self.dismiss(name)

    def _note_conditions(self, workload: str) -> Commits:
        found = self.conditions.setdefault(workload, Conditions())
        found.commits.append(self.servers.measure_commits())
        found.loads.append(os.getloadavg()[0])
        return found.commits[-1]


def warm_up(contender: Contender, size: int) -> None:
    """Have it do a little of everything. A tenth of what it is asked for at most is a little."""
    for workload, part in (("W2", 1), ("W3", 10), ("W4", 10), ("W8", 10), ("W8 runs", 10)):
        few = min(size // part, dict(contender.entry.largest).get(workload, 0) // 10)
        if few:
            contender.ask(WORKLOADS[workload].do, few, max_wait=120)

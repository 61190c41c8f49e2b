"""Measurements and their medians."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from benchmarks.servers import Commits
from benchmarks.workloads import WORKLOADS, Workload


@dataclass
class Figure:
    """One contender at one workload and size, measured some times."""

    contender: str
    workload: str
    size: int
    seconds: list[float] = field(default_factory=list)
    commits: list[Commits] = field(default_factory=list)  #: right before each
    latencies: list[float] = field(default_factory=list)  #: of single runs, when idle
    error: str | None = None

    @property
    def shape(self) -> Workload:
        return WORKLOADS[self.workload]

    @property
    def median(self) -> float:
        """Seconds; for the idle measurement those of one run."""
        return statistics.median(self.latencies or self.seconds)

    @property
    def lowest(self) -> float:
        """Seconds of the quickest measurement."""
        return min(self.seconds)

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.latencies, n=100, method="inclusive")[98]

    @property
    def per_step(self) -> float:
        """Milliseconds."""
        return self.median / self.shape.steps(self.size) * 1000

    @property
    def value(self) -> float:
        """The median in the workload's own unit."""
        unit = self.shape.unit
        if unit in ("runs/s", "messages/s"):
            return self.size / self.median
        if unit == "ms p50":
            return self.median * 1000
        return self.median if unit == "s" else self.per_step

    @property
    def is_measured(self) -> bool:
        return self.error is None and bool(self.seconds)

    def as_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "contender": self.contender,
            "workload": self.workload,
            "size": self.size,
            "unit": self.shape.unit,
            "seconds": [round(value, 6) for value in self.seconds],
            "repeats": len(self.seconds),
            "commit_ms": [round(commits.durable, 4) for commits in self.commits],
        }
        if self.error is not None:
            return fields | {"error": self.error}
        if self.seconds:
            fields |= {"median": round(self.value, 4), "median_seconds": round(self.median, 6)}
        if self.latencies:
            fields |= {"p50_ms": self.median * 1000, "p99_ms": self.p99 * 1000}
        return fields


@dataclass
class Results:
    """Every figure of one invocation."""

    figures: dict[tuple[str, str, int], Figure] = field(default_factory=dict)

    def figure(self, contender: str, workload: str, size: int) -> Figure:
        """The figure of that name, made if it is new."""
        key = (contender, workload, size)
        return self.figures.setdefault(key, Figure(*key))

    def find(self, contender: str, workload: str, size: int) -> Figure | None:
        """The figure, if it was measured."""
        found = self.figures.get((contender, workload, size))
        return found if found is not None and found.is_measured else None

    def of(self, workload: str, size: int) -> list[Figure]:
        return [f for f in self.figures.values() if (f.workload, f.size) == (workload, size)]

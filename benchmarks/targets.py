"""The targets: ratios of medians, and whether they were met."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.results import Figure, Results

OURS = "flowengine"
#: Work cannot be quicker than it is alone, but a busy machine makes it slower.
_LOWEST = "{}, the lowest of each"


@dataclass(frozen=True)
class Ratio:
    """A comparison. `at_least` or `at_most` is the target; without one it is only printed."""

    what: str
    value: float
    at_least: float | None = None
    at_most: float | None = None
    workload: str = ""  #: under whose table it stands
    size: int | None = None
    rival: str = ""

    @property
    def is_met(self) -> bool | None:
        if self.at_least is not None:
            return self.value >= self.at_least
        return None if self.at_most is None else self.value <= self.at_most

    @property
    def target(self) -> str:
        if self.at_least is not None:
            return f"at least {self.at_least:g}"
        return "" if self.at_most is None else f"at most {self.at_most:g}"

    @property
    def verdict(self) -> str:
        return {True: "met", False: "missed", None: ""}[self.is_met]

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "value": round(self.value, 4), "verdict": self.verdict}


#: (workload, rival) to the factor by which we must be faster, by size.
_FASTER: dict[tuple[str, str], dict[int, float]] = {
    ("W2", "canvas"): {1000: 10, 5000: 20},
    ("W2", "dbos-steps"): {1000: 10, 5000: 10},
    ("W2", "dbos-queue"): {1000: 20, 5000: 20},
    ("W3", "canvas"): {100: 3, 1000: 8},
    ("W3", "dbos-steps"): {100: 4, 1000: 4},
    ("W4", "canvas"): {500: 5, 2000: 5},
    ("W4", "dbos-steps"): {500: 8, 2000: 8},
    ("W4", "dbos-queue"): {500: 8, 2000: 8},
    ("W7", "dbos-steps"): {1000: 3, 10_000: 3},
}
#: Durable functions: (workload, size) to the workload of the rival and the factor.
_FUNCTIONS = {
    ("W8", 1000): ("W3", 5.0),
    ("W8 reads", 1000): ("W3", 20.0),
    ("W8 runs", 500): ("W4", 7.0),
    ("W8 runs", 2000): ("W4", 7.0),
}
_EMBEDDED = {("W2", 1000): 10.0, ("W3", 1000): 10.0}


def ratios(results: Results) -> list[Ratio]:
    """Everything that can be compared, in the order of the workloads."""
    return [
        *_against_rivals(results, OURS),
        *_together(results),
        *_idle(results),
        *_computing(results),
        *_pipelines(results),
        *_embedded(results),
        *_functions(results),
    ]


def _against_rivals(results: Results, ours: str) -> Iterator[Ratio]:
    for figure in results.figures.values():
        mine = results.find(ours, figure.workload, figure.size)
        if (
            mine is None
            or not figure.is_measured
            or figure.workload not in ("W2", "W3", "W4", "W6", "W7")
        ):
            continue
        rival = figure.contender
        if rival == ours or rival.endswith("-sqlite"):
            continue
        targets = _FASTER.get((figure.workload, rival), {})
        yield Ratio(
            f"{figure.workload} {figure.size:,}: × as fast as {rival}",
            figure.median / mine.median,
            at_least=targets.get(figure.size),
            **_about(figure),
        )


def _together(results: Results) -> Iterator[Ratio]:
    """Rivals have no call that starts many runs: theirs were started one by one."""
    for figure in results.figures.values():
        mine = results.find(OURS, "W4 together", figure.size)
        targets = _FASTER.get(("W4", figure.contender), {})
        if mine is None or figure.workload != "W4" or not targets or not figure.is_measured:
            continue
        yield Ratio(
            f"W4 {figure.size:,} together: × as fast as {figure.contender}'s one by one",
            figure.median / mine.median,
            at_least=targets.get(figure.size),
            **(_about(figure) | {"workload": mine.workload}),
        )


def _idle(results: Results) -> Iterator[Ratio]:
    for figure in results.figures.values():
        mine = results.find(OURS, "W4 idle", figure.size)
        if mine is None or figure.workload != "W4 idle" or figure.contender == OURS:
            continue
        if figure.is_measured and not figure.contender.endswith("-sqlite"):
            yield Ratio(
                f"W4 idle p50: part of {figure.contender}'s",
                mine.median / figure.median,
                at_most=0.5 if figure.contender == "canvas" else None,
                **_about(figure),
            )


def _computing(results: Results) -> Iterator[Ratio]:
    """Overhead over the computation alone."""
    pure, mine = results.find("pure", "W5 light", 40), results.find(OURS, "W5 light", 40)
    for rival, most in (("canvas", 0.5), ("dbos-steps", None)):
        other = results.find(rival, "W5 light", 40)
        if pure and mine and other:
            ours, theirs = mine.median - pure.median, other.median - pure.median
            what = f"W5 light: overhead, part of {rival}'s"
            yield Ratio(what, ours / theirs, at_most=most, **_about(other))
    pure = results.find("pure", "W5 long", 10)
    for name, most in ((OURS, 1.03), ("canvas", None), ("dbos-steps", None)):
        figure = results.find(name, "W5 long", 10)
        if pure and figure:
            what = f"W5 long: {name}, × the computation alone"
            yield Ratio(what, figure.median / pure.median, at_most=most, **_about(figure))
            yield Ratio(_LOWEST.format(what), figure.lowest / pure.lowest, **_about(figure))


def _pipelines(results: Results) -> Iterator[Ratio]:
    """Two steps of an item against two items of one step."""
    for figure in list(results.figures.values()):
        if figure.workload != "W6" or figure.contender != OURS or not figure.is_measured:
            continue
        if wide := results.find(OURS, "W2", 2 * figure.size):
            yield Ratio(
                f"W6 {figure.size:,}: time per step, × W2 {2 * figure.size:,}'s",
                figure.per_step / wide.per_step,
                at_most=1.5,
                **_about(figure),
            )


def _embedded(results: Results) -> Iterator[Ratio]:
    for figure in results.figures.values():
        mine = results.find("flowengine-sqlite", figure.workload, figure.size)
        if mine is None or figure.contender != "dbos-sqlite" or not figure.is_measured:
            continue
        yield Ratio(
            f"{figure.workload} {figure.size:,} on SQLite: × as fast as dbos-sqlite",
            figure.median / mine.median,
            at_least=_EMBEDDED.get((figure.workload, figure.size)),
            **_about(figure),
        )


def _functions(results: Results) -> Iterator[Ratio]:
    """Durable functions against the steps of DBOS, and calls with tasks against a graph's chain."""
    for ours, rival, where in (
        (OURS, "dbos-steps", ""),
        (f"{OURS}-sqlite", "dbos-sqlite", " on SQLite"),
    ):
        for (workload, size), (other, least) in _FUNCTIONS.items():
            mine, theirs = results.find(ours, workload, size), results.find(rival, other, size)
            if mine and theirs:
                what = f"{workload} {size:,}{where}: × as fast as {other} of {rival}"
                yield Ratio(what, theirs.median / mine.median, at_least=least, **_about(mine))
                yield Ratio(_LOWEST.format(what), theirs.lowest / mine.lowest, **_about(mine))
        tasks, graph = results.find(ours, "W8 tasks", 1000), results.find(ours, "W3", 1000)
        if tasks and graph:
            what = f"W8 tasks 1,000{where}: time, × W3 1,000's of a graph"
            yield Ratio(what, tasks.median / graph.median, at_most=1.4, **_about(tasks))
            yield Ratio(_LOWEST.format(what), tasks.lowest / graph.lowest, **_about(tasks))


def _about(figure: Figure) -> dict[str, Any]:
    return {"workload": figure.workload, "size": figure.size, "rival": figure.contender}

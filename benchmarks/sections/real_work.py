"""Real work: facets that take a second, alone and among facets that take a millisecond.

An optimisation for no-ops must not make these wait: a thread that holds a batch, and sleeps
over its first item, would keep the rest from threads that are free.
"""

from __future__ import annotations

import math
from collections import defaultdict

from benchmarks.field import Contender
from benchmarks.sections.section import TIMEOUT, Say, Section, fresh
from benchmarks.servers import Servers
from benchmarks.targets import Ratio

THREADS = 8
LONG = [1.0] * 50
#: Every eleventh takes a second.
MIX = [1.0 if number % 11 == 10 else 0.001 for number in range(440)]


def run(servers: Servers, say: Say) -> Section:
    section = Section(
        f"real work: facets that sleep, on {THREADS} threads",
        ("contender", "facets", "ideal s", "seconds", "longest gap of a thread, ms"),
        [servers.measure_commits()],
    )
    worker = f"--pool threads --concurrency {THREADS}"
    for name, environment in (
        ("flowengine", {"BENCH_WORKER": worker}),
        ("flowengine-sqlite", {}),
    ):
        with fresh(servers, name, **environment) as contender:
            for facets, lengths in (("50 of 1 s", LONG), ("400 of 1 ms, 40 of 1 s", MIX)):
                _measure(section, contender, facets, lengths)
                say(f"real work, {name}: {section.rows[-1]}")
    return section


def ideal(lengths: list[float]) -> float:
    """Seconds with nothing lost: each takes the next as soon as it is free."""
    free = [0.0] * THREADS
    for length in lengths:
        free.sort()
        free[0] += length
    return max(free)


def _measure(section: Section, contender: Contender, facets: str, lengths: list[float]) -> None:
    name, best = contender.entry.name, ideal(lengths)
    answer = contender.ask("naps", lengths, max_wait=TIMEOUT)
    naps, seconds = answer["result"], answer["seconds"]
    assert len(naps) == len(lengths)
    assert all(
        end - begin >= length * 0.99 for (begin, end, _), length in zip(naps, lengths, strict=True)
    )
    gap = longest_gap(naps) * 1000
    section.rows.append((name, facets, f"{best:.2f}", f"{seconds:.2f}", f"{gap:.0f}"))
    section.data[f"{name}: {facets}"] = {"ideal": best, "seconds": seconds, "gap_ms": gap}
    section.ratios.append(Ratio(f"{name}: {facets}, × the ideal", seconds / best, at_most=1.05))
    section.ratios.append(Ratio(f"{name}: {facets}, longest gap, ms", gap, at_most=100))


def longest_gap(naps: list[list[float]]) -> float:
    """The longest time that a thread did nothing while some item had not begun."""
    last_begin = max(begin for begin, _, _ in naps)
    first_begin = min(begin for begin, _, _ in naps)
    threads: defaultdict[float, list[tuple[float, float]]] = defaultdict(list)
    for begin, end, thread in naps:
        threads[thread].append((begin, end))
    gaps = []
    for turns in threads.values():
        turns.sort()
        ends = [first_begin, *(end for _, end in turns)]
        begins = [*(begin for begin, _ in turns), math.inf]
        # After the last item has begun there is nothing to wait for.
        gaps += [min(begin, last_begin) - end for end, begin in zip(ends, begins, strict=True)]
    return max(gaps)

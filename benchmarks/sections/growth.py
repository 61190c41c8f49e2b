"""Growth: a step of a large run must not cost more than a step of a small one."""

from __future__ import annotations

import itertools
import statistics

from benchmarks.sections.section import Say, Section, fresh, size_for, timed
from benchmarks.servers import Servers
from benchmarks.targets import Ratio

STEPS = (100, 5_000, 50_000)
_ROUNDS, _ONCE = 3, 5_000  # runs of more steps than this are measured once
_SHAPES = ("W2", "W3", "W6")


def run(servers: Servers, say: Say, steps: tuple[int, ...] = STEPS) -> Section:
    section = Section(
        "growth: milliseconds per step, by the steps of one run (flowengine)",
        ("workload", *(f"{count:,}" for count in steps)),
        [servers.measure_commits()],
    )
    with fresh(servers, "flowengine") as contender:
        for workload in _SHAPES:
            taken: dict[int, list[float]] = {count: [] for count in steps}
            for round_number in range(_ROUNDS):
                for count in steps:
                    if count > _ONCE and round_number:
                        continue
                    times = max(1, 500 // count)  # a hundred steps are over too soon
                    taken[count].append(
                        timed(contender, workload, size_for(workload, count), times)
                    )
                    say(f"growth {workload} {count:,} steps: {taken[count][-1]:.3f} ms/step")
            found = {count: statistics.median(values) for count, values in taken.items()}
            section.rows.append((workload, *(f"{found[count]:.3f}" for count in steps)))
            section.data[workload] = taken
            for small, large in itertools.pairwise(steps):
                # Of the same round: a busy minute hits both.
                pairs = zip(taken[small], taken[large], strict=False)
                section.ratios.append(
                    Ratio(
                        f"{workload}: time per step at {large:,}, × that at {small:,}",
                        statistics.median(b / a for a, b in pairs),
                        at_most=1.3,
                    )
                )
    return section

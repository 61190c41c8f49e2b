"""Small runs first, then large ones: plans made for tiny tables must not stay.

PostgreSQL plans a prepared statement by the statistics of the moment and may keep the plan. So
the same workloads are measured in turns by two: workers that have seen small runs and a wide
one, and new workers on a new database.
"""

from __future__ import annotations

from benchmarks.sections.section import Say, Section, fresh, in_turns, timed
from benchmarks.servers import Servers
from benchmarks.targets import Ratio

_SMALL_RUNS, _WIDE = 300, 5_000
_AFTERWARDS = (("W3", 100, 5), ("W3", 1_000, 3), ("W2", 1_000, 3), ("W6", 500, 3), ("W4", 200, 3))


def run(servers: Servers, say: Say) -> Section:
    section = Section(
        f"small runs first: ms/step in a new database, and after {_SMALL_RUNS} small runs and a "
        f"fan-out of {_WIDE:,} (flowengine)",
        ("workload", "N", "at once", "afterwards", "afterwards / at once"),
        [servers.measure_commits()],
    )
    with fresh(servers, "flowengine") as old:
        timed(old, "W4", _SMALL_RUNS)
        timed(old, "W2", _WIDE)
        old.freeze()
        for workload, size, times in _AFTERWARDS:
            with fresh(servers, "flowengine") as new:
                pair = in_turns(new, old, workload, size, times)
                before, after = pair.medians
            say(f"afterwards {workload} {size:,}: {before:.2f} → {after:.2f} ms/step")
            ratio = pair.ratio
            cells = (workload, f"{size:,}", f"{before:.3f}", f"{after:.3f}", f"{ratio:.2f}")
            section.rows.append(cells)
            section.data[f"{workload} {size}"] = {"at once": before, "afterwards": after}
            what = f"{workload} {size:,}: time per step, afterwards × at once"
            section.ratios.append(Ratio(what, ratio, at_most=1.3))
    return section

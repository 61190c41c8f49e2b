"""Memory: how much a wide run adds to what its processes take when idle.

"Own" is the anonymous memory, with pages that forked processes have in common divided between
them: what the machine has to give. RSS counts such pages once for each process, and program
files too. PSS would divide the files as well, by whoever else uses them at the moment, and so
moves when a stranger starts.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.field import Contender
from benchmarks.sections.section import Say, Section, fresh, timed
from benchmarks.servers import Servers
from benchmarks.targets import Ratio

SIZE = 5_000
_EVERY = 0.1  # seconds between two looks
_MEASURES = {"own": "Pss_Anon", "RSS": "Rss"}  # by their names in smaps_rollup


def run(servers: Servers, say: Say, size: int = SIZE) -> Section:
    section = Section(
        f"memory: W2 of {size:,}, in MB; growth is the highest sum seen, less that of idleness",
        ("contender", "measure", "idle", "highest", "afterwards", "growth"),
        [servers.measure_commits()],
    )
    for name in ("flowengine", "canvas"):
        with fresh(servers, name) as contender:
            time.sleep(2)
            idle = _look(contender)
            watch = _Watch(contender)
            timed(contender, "W2", size)
            highest = watch.stop()
            time.sleep(2)
            after = _look(contender)
        for measure in _MEASURES:
            grown = highest[measure] - idle[measure]
            figures = (idle[measure], highest[measure], after[measure], grown)
            section.rows.append((name, measure, *(f"{value:.1f}" for value in figures)))
            section.data[f"{name} {measure}"] = figures
            say(f"memory {name} {measure}: {grown:+.1f} MB")
            if name == "flowengine":
                what = f"W2 {size:,}: growth of worker and caller, {measure}, MB"
                section.ratios.append(Ratio(what, grown, at_most=40.0))
    return section


class _Watch:
    """Samples the memory until `stop`."""

    def __init__(self, contender: Contender) -> None:
        self._contender = contender
        self._highest: defaultdict[str, float] = defaultdict(float)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._go)
        self._thread.start()

    def _go(self) -> None:
        while not self._stop.wait(_EVERY):
            for measure, value in _look(self._contender).items():
                self._highest[measure] = max(self._highest[measure], value)

    def stop(self) -> dict[str, float]:
        self._stop.set()
        self._thread.join()
        return dict(self._highest)


def _look(contender: Contender) -> dict[str, float]:
    """The worker and the caller together. A beat is neither."""
    found = dict.fromkeys(_MEASURES, 0.0)
    for process in contender.processes():
        with suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            if "beat" in process.cmdline():
                continue
            text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            values = dict(line.split(":") for line in text.splitlines()[1:])
            for measure, name in _MEASURES.items():
                found[measure] += int(values[name].split()[0]) / 1024
    return found

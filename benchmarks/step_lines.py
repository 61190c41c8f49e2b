"""Measures what a line costs that the code of a step prints, in microseconds of CPU time.

The stream behind is /dev/null; the file of lines is in TMPDIR. Chunks are taken as stored now and
then, as by a database that costs nothing.

    PYTHONPATH=. python benchmarks/step_lines.py
"""

from __future__ import annotations

import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from flowengine.log_context import logged_step
from flowengine.step_logs.capture import capture
from flowengine.step_logs.chunks import TryKey
from flowengine.step_logs.redaction import Redactor
from flowengine.step_logs.spool import LogSpool
from flowengine.step_logs.try_log import TryLog

SERIES, CALLS = 60, 500
LINE = "row 123456 of 'orders' is loaded in 0.031 s"


class Step:
    """A try whose log is never full."""

    run_id = path = facet = "x"
    try_number = 1

    def __init__(self, directory: Path) -> None:
        self.spool = LogSpool(directory, scope="x", max_bytes=1 << 30)
        secrets = Redactor(f"a secret of the settings, {number}" for number in range(5))
        self._log = TryLog(self.spool, TryKey("r" * 32, "t" * 32, 1), secrets, 1 << 40)

    def log(self) -> TryLog:
        return self._log

    def store(self) -> None:
        self.spool.delivered(self._log.take())


def microseconds(call: Callable[[], object], after: Callable[[], object]) -> float:
    """The CPU time of one call: the median of the series."""
    series = []
    for _ in range(SERIES):
        began = time.thread_time()
        for _ in range(CALLS):
            call()
        series.append((time.thread_time() - began) / CALLS)
        after()
    return statistics.median(series) * 1e6


def main() -> None:
    table = Table("a line", "outside a step, µs", "in a step, µs", "more")
    console = Console()
    logger = logging.getLogger("benchmark")
    logger.addHandler(logging.NullHandler())
    logger.setLevel(logging.INFO)
    logger.propagate = False
    out, sys.stdout = sys.stdout, open(os.devnull, "w")  # noqa: SIM115
    calls: dict[str, Callable[[], object]] = {
        "print(text)": lambda: print(LINE),
        "print(text, number, number)": lambda: print(LINE, 1, 2),
        "write(text and newline)": lambda: sys.stdout.write(f"{LINE}\n"),
        "logger.info(text)": lambda: logger.info(LINE),
    }
    plain = {name: microseconds(call, int) for name, call in calls.items()}
    capture()
    with tempfile.TemporaryDirectory() as directory:
        step = Step(Path(directory))
        token = logged_step.set(step)
        for name, call in calls.items():
            cost = microseconds(call, step.store)
            table.add_row(name, f"{plain[name]:.1f}", f"{cost:.1f}", f"{cost - plain[name]:+.1f}")
        logged_step.reset(token)
        step.spool.close()
    sys.stdout = out
    console.print(table)


if __name__ == "__main__":
    main()

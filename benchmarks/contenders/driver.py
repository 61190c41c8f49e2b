"""The common part of all contenders' programs: it reads requests and writes answers as JSON lines.

    {"do": "fan_out", "size": 100}      →  {"seconds": 0.41, "result": 4950}

Only the standard library is imported here. The clock runs from before the first call of the
contender's API until it has returned the result.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
import traceback
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.processes import GuardedProcess, clean_environment, python

#: Seconds between two runs of the idle measurement: long enough for everybody to be asleep.
PAUSE = 0.03

#: Seconds after which a run has failed to end.
ENDLESS = 900.0


class Driver:
    """The caller's side of a contender. A workload it has no method for is not its."""

    packages: tuple[str, ...] = ()  #: whose versions are reported

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}  #: what differs from the contender's defaults
        self.processes: list[GuardedProcess] = []
        self.directory = Path.cwd()

    def open(self) -> None:
        """Start what is needed. The first figure must not pay for it."""

    def prepare(self, do: str, size: int) -> None:
        """Write down the definition of a workload, as an author would have long before."""

    def close(self) -> None:
        for process in self.processes:
            process.stop()

    # --- what a contender offers; each returns the result ---

    def one_run(self, number: int) -> int:
        raise NotImplementedError

    # --- measuring ---

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        do, size = question["do"], question["size"]
        self.prepare(do, size)
        if do == "idle":
            return self._idle(size)
        method = getattr(self, do, None)
        if method is None:
            return {"error": f"{type(self).__name__} has no {do}"}
        begun = time.perf_counter()
        result = method(size)
        seconds = time.perf_counter() - begun
        if isinstance(result, Timed):
            result, seconds = result.result, result.seconds
        return {"seconds": seconds, "result": result}

    def _idle(self, size: int) -> dict[str, Any]:
        latencies, results = [], []
        for number in range(size):
            time.sleep(PAUSE)
            begun = time.perf_counter()
            results.append(self.one_run(number))
            latencies.append(time.perf_counter() - begun)
        return {"seconds": sum(latencies), "latencies": latencies, "result": results}

    # --- processes of its own ---

    def start_process(self, name: str, *command: str, **environment: str) -> GuardedProcess:
        """Start a Python program that works for this contender and ends with it."""
        process = GuardedProcess(
            python(*command),
            directory=self.directory,
            environment=clean_environment(**environment),
            log=self.directory / f"{name}.log",
        )
        self.processes.append(process)
        return process

    def wait_for(self, what: str, is_there: Any, seconds: float = 60.0) -> None:
        ends = time.monotonic() + seconds
        while not is_there():
            for process in self.processes:
                if not process.is_running:
                    raise RuntimeError(f"{what} has ended: {process.last_words()}")
            if time.monotonic() > ends:
                said = "\n".join(process.last_words(1000) for process in self.processes)
                raise TimeoutError(f"{what} was not there after {seconds:g} s: {said}")
            time.sleep(0.05)


class Timed:
    """A result whose time the driver took itself, because not all of the call counts."""

    def __init__(self, result: Any, seconds: float) -> None:
        self.result, self.seconds = result, seconds


def serve(driver: Driver) -> None:
    """Answer questions until there are no more."""
    # Output of a library must not end up between our lines.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(**answer: Any) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        driver.open()
        versions = {name: version(name) for name in driver.packages}
        say(versions={"python": platform.python_version(), **versions}, settings=driver.settings)
        for line in sys.stdin:
            try:
                say(**driver.answer(json.loads(line)))
            except Exception as problem:
                traceback.print_exc()
                say(error=f"{type(problem).__name__}: {problem}"[:2000])
    except Exception as problem:
        traceback.print_exc()
        say(error=f"{type(problem).__name__}: {problem}"[:2000])
    finally:
        driver.close()
        # Threads of a library that wait for nobody must not keep us.
        answers.flush()
        os._exit(0)

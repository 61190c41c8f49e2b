"""Facets whose tries can be seen from outside: each locks a file while it runs.

The system frees the lock of a process that is killed, so an observer who tries the locks knows
which tries run, and knows nothing of the engine.
"""

from __future__ import annotations

import fcntl
import functools
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flowengine import event_facet, foreach, workflow

ITEMS = 6


@functools.cache
def _main_process() -> int:
    """The worker whose pool child this is; later it may have been killed."""
    return os.getppid()


@contextmanager
def _seen() -> Iterator[None]:
    name = f"alive-{_main_process()}-{os.getpid()}-{time.monotonic_ns()}"
    path = Path(os.environ["TRACES"]) / name
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
        path.unlink()


def alive(traces: Path) -> Counter[int]:
    """Return how many tries run, by the process of their worker."""
    found: Counter[int] = Counter()
    for path in traces.glob("alive-*"):
        with suppress(FileNotFoundError), path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                found[int(path.name.split("-")[1])] += 1
    return found


@event_facet(max_losses=1000)
def here(n: int) -> int:
    with _seen():
        time.sleep(0.01 * (n % 4))
        return n + 1


@event_facet(task_list="wide", max_losses=1000)
def there(n: int) -> int:
    with _seen():
        time.sleep(0.02)
        return n


@workflow
def both(n: int) -> list[int]:
    """A chain in one task list, and a fan-out in another."""
    first = here(here(n))
    return foreach(list(range(ITEMS)), lambda i: there(here(i + first)))


def expected(n: int) -> list[int]:
    return [i + n + 3 for i in range(ITEMS)]

"""A run of thirty steps with a foreach, for tests that kill the process that runs it."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flowengine import event_facet, foreach, workflow
from flowengine.store import Database
from flowengine.store.sqlite.database import SqliteDatabase

EXPECTED = sum((n + 1) * 2 for n in range(12)) + 5


@event_facet(task_list="first")
def increase(n: int) -> int:
    _note("increase")
    return n + 1


@event_facet(task_list="second")
def double(n: int) -> int:
    _note("double")
    return n * 2


@event_facet
def add_up(numbers: list[int]) -> int:
    _note("add_up")
    return sum(numbers)


@workflow
def thirty_steps(count: int) -> int:
    doubled = foreach(list(range(12)), lambda n: double(increase(n)))
    total = add_up(doubled)
    for _ in range(5):
        total = increase(total)
    return total


def _note(what: str) -> None:
    """Record each execution: a second one after a kill is allowed, and counted."""
    if log := os.environ.get("EXECUTIONS"):
        with Path(log).open("a") as file:
            file.write(f"{what}\n")


def run_and_die(url: str, commits: int, moment: str) -> None:
    """Run the workflow; kill this process at its n-th commit. 0: let it live."""
    os.environ["FLOWENGINE_DATABASE_URL"] = url
    os.environ["FLOWENGINE_CONCURRENCY"] = "2"
    os.environ["FLOWENGINE_WATCHDOG_INTERVAL"] = "0.05"
    if commits:
        kill_at(SqliteDatabase, commits, moment)
    run = thirty_steps.options(key="the one").start(30)
    print(run.result(timeout=60))
    sys.stdout.flush()


def kill_at(kind: type[Database], commits: int, moment: str) -> None:
    """Kill this process at its n-th commit to a database of that kind."""
    numbers = itertools.count(1)  # threads commit side by side: each commit has a number of its own

    def counting(begin: Any) -> Any:
        @contextmanager
        def counted(database: Database) -> Iterator[Any]:
            with begin(database) as transaction:
                yield transaction
                number = next(numbers)
                if moment == "before" and number == commits:
                    os.kill(os.getpid(), signal.SIGKILL)
            if moment == "after" and number == commits:
                os.kill(os.getpid(), signal.SIGKILL)

        return counted

    for name in ("write", "autocommit", "optimistic"):
        setattr(kind, name, counting(getattr(kind, name)))

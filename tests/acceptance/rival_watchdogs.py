"""Several processes that take due schedules at the same time, and die at the worst moments.

    python -m tests.acceptance.rival_watchdogs URL SEED SECONDS

The process that forks them has no connection of its own. It draws lots from the seed: a watchdog
leaves ticks out, makes them twice at a time, and is killed, by itself in the middle of a commit or
right after it, or by the parent at any moment. A new one takes its place.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from random import Random
from typing import Any

from flowengine import event_facet, workflow
from flowengine.engine import Engine
from flowengine.engine.tick_runs import TickRuns
from flowengine.engine.watchdog import Watchdog
from flowengine.store import Database
from flowengine.store.schedules import Schedules

PROCESSES = 5
_SUICIDES = 0.01  #: of all commits, and of all moments after one


@event_facet(name="rivals.note")
def note(tick: str) -> str:
    return tick


@workflow(name="rivals.ticking")
def ticking(tick: str) -> str:
    return note(tick)


def dying(function: Any, lots: Random, share: float) -> Any:
    """Kill this process at some of the calls of a function, before the call."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if lots.random() < share:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)

    return call


def watch(url: str, seed: int, ends: float) -> None:
    """Take due schedules until the time is over, or until death."""
    lots = Random(seed)
    engine = Engine(Database(url))
    Schedules.move = dying(Schedules.move, lots, _SUICIDES)  # type: ignore[method-assign]
    TickRuns.finish = dying(TickRuns.finish, lots, _SUICIDES)  # type: ignore[method-assign]
    while time.time() < ends:
        match lots.choice(("drop", "tick", "twice")):
            case "tick":
                Watchdog(engine).tick()
            case "twice":
                passes = [threading.Thread(target=engine.schedules.take_due) for _ in range(2)]
                for each in passes:
                    each.start()
                for each in passes:
                    each.join()
        time.sleep(lots.uniform(0, 0.3))
    engine.close()


def contest(url: str, seed: int, seconds: float) -> dict[str, int]:
    """Let watchdogs compete; return how many died by themselves, and by the parent."""
    lots = Random(seed)
    ends = time.time() + seconds
    alive: set[int] = set()
    killed: set[int] = set()
    counts = {"killed_itself": 0, "killed": 0, "processes": 0}
    while True:
        while len(alive) < PROCESSES and time.time() < ends:
            counts["processes"] += 1
            pid = os.fork()
            if pid == 0:
                try:
                    watch(url, seed * 10_000 + counts["processes"], ends)
                finally:
                    os._exit(0)
            alive.add(pid)
        time.sleep(lots.uniform(0.05, 0.4))
        if alive and time.time() < ends:
            killed.add(lots.choice(sorted(alive)))
            os.kill(max(killed & alive), signal.SIGKILL)
        for pid in list(alive):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                alive.discard(pid)
                if os.WIFSIGNALED(status):
                    counts["killed" if pid in killed else "killed_itself"] += 1
                killed.discard(pid)
        if not alive and time.time() >= ends:
            return counts


if __name__ == "__main__":
    print(json.dumps(contest(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))))

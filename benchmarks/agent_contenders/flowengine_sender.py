"""Sends messages to flowengine's agents, and calls the plain task of the same worker.

Given: the numbers of turns on idle processes and of turns at once.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.agent_contenders.flowengine_agents import counter, counter_with_effects
from benchmarks.agent_flows import gaps

_SECONDS = 60  # in which the worker starts


def one_by_one(agent: Any, turns: int, label: str) -> None:
    for number in range(turns):
        agent.send(f"{label}{number}").result(timeout=60)
        time.sleep(0.02)


def together(agent: Any, turns: int, label: str) -> None:
    handles = [agent.send(f"{label}{number}") for number in range(turns)]
    for handle in handles:
        handle.result(timeout=300)


def plain(app: Any, times: int) -> list[float]:
    """Return the seconds of single `task.delay().get()` calls on the same worker."""
    task: Callable[..., Any] = app.tasks["bench.plain"].delay
    found = []
    for _ in range(times):
        began = time.monotonic()
        task(1).get(timeout=60)
        found.append(time.monotonic() - began)
        time.sleep(0.02)
    return found


def main(idle_turns: int, turns: int) -> dict[str, Any]:
    """Measure both agents and the plain task; the worker may have to start first."""
    from flowengine.celery import app

    __import__("bench_plain")
    ends = time.monotonic() + _SECONDS
    while not app.control.ping(timeout=0.2):
        assert time.monotonic() < ends, "the worker did not start"
    agents = {"counter": counter, "counter_with_effects": counter_with_effects}
    for each in agents.values():
        one_by_one(each, 5, "warm")
    plain(app, 5)
    found: dict[str, Any] = {"plain": plain(app, idle_turns)}
    for name, each in agents.items():
        Path(os.environ["BENCH_CALLS"]).unlink()
        one_by_one(each, idle_turns, "idle")
        idle, began = gaps(os.environ["BENCH_CALLS"]), time.monotonic()
        together(each, turns, "many")
        found[name] = idle, turns / (time.monotonic() - began)
    app.flowengine.engine.close()
    return found


if __name__ == "__main__":
    print(json.dumps(main(*map(int, sys.argv[1:]))))

"""Runs of the mixed graph, undisturbed and while processes are killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from typing import Any

from tests.acceptance.celery import graphs
from tests.acceptance.celery.rows import HandledCounters, check_runs, ended, wait_for
from tests.celery_nodes import Fleet


def start_mixed(fleet: Fleet, count: int) -> dict[str, Any]:
    """Start that many runs; return the results that are expected, by id."""
    return {fleet.start(graphs.mixed, n=n).id: graphs.expected(n) for n in range(count)}


def wait_and_check(fleet: Fleet, runs: dict[str, Any], seconds: float = 60) -> HandledCounters:
    wait_for(fleet.engine, [fleet.engine.run(run_id) for run_id in runs], seconds)
    return check_runs(fleet.engine, runs, graphs.TASKS)


class Killer:
    """Kills processes at moments and in an order that are drawn from a seed."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet, self.lots = fleet, random.Random(seed)
        self.kills: Counter[str] = Counter()

    def wait(self, longest: float) -> None:
        """Let runs proceed until the next kill, for a time that the seed decides."""
        time.sleep(self.lots.uniform(0.05, longest))

    def kill(self, what: str) -> None:
        getattr(self, f"_{what}")()
        self.kills[what] += 1

    def _child(self) -> None:
        # Celery itself gives up when a child dies while its worker starts.
        workers = [worker for worker in self.fleet.workers if worker.is_ready_now()]
        children = [pid for worker in workers for pid in worker.children()]
        if children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.lots.choice(children), signal.SIGKILL)

    def _worker(self) -> None:
        worker = self.lots.choice(self.fleet.workers)
        worker.kill()
        worker.start(wait=False)

    def _whole_worker(self) -> None:
        """Kill a worker and its children at the same moment: none works on as an orphan."""
        worker = self.lots.choice(self.fleet.workers)
        worker.freeze()
        for pid in worker.children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        worker.kill()
        worker.start(wait=False)

    def _beat(self) -> None:
        for beat in self.fleet.beats:
            beat.kill()


def run_under_kills(fleet: Fleet, seed: int, count: int, plan: list[str], longest: float) -> None:
    """Start runs, kill what the plan names in an order drawn from the seed, check every row."""
    killer = Killer(fleet, seed)
    killer.lots.shuffle(plan)
    refused = fleet.count_logged("refused a late report")
    began = time.monotonic()
    runs = start_mixed(fleet, count)
    handles = [fleet.engine.run(run_id) for run_id in runs]
    for what in plan:
        if ended(fleet.engine, handles) == len(handles):
            break
        killer.wait(longest)
        killer.kill(what)
    counters = wait_and_check(fleet, runs, 60 + 2 * count)
    refused = fleet.count_logged("refused a late report") - refused
    print(
        f"\nseed {seed}: {count} runs in {time.monotonic() - began:.1f} s; killed "
        f"{dict(killer.kills)}; {counters.lost} tries lost, {refused} late reports refused"
    )
    assert counters.failed == 0
    assert sum(killer.kills.values()) >= min(3, len(plan))

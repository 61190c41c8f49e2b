"""Pool children, workers and the beat are killed while runs go on."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from typing import Any

import pytest

from tests.acceptance.celery import graphs
from tests.acceptance.celery.rows import check_runs, ended, wait_for
from tests.celery_nodes import Fleet, until


class Killer:
    """Kills at moments and in an order that its seed decides."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet, self.lots = fleet, random.Random(seed)
        self.kills: Counter[str] = Counter()

    def wait(self, longest: float) -> None:
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

    def _beat(self) -> None:
        for beat in self.fleet.beats:
            beat.kill()


def runs_under_fire(fleet: Fleet, seed: int, count: int, plan: list[str], longest: float) -> None:
    """Start runs, kill what the plan says in an order of the seed's, and check every row."""
    killer = Killer(fleet, seed)
    killer.lots.shuffle(plan)
    refused = fleet.count_logged("refused a late report")
    began = time.monotonic()
    runs = {fleet.start(graphs.mixed, n=n).id: graphs.expected(n) for n in range(count)}
    handles = [fleet.engine.run(run_id) for run_id in runs]
    for what in plan:
        if ended(fleet.engine, handles) == len(handles):
            break
        killer.wait(longest)
        killer.kill(what)
    wait_for(fleet.engine, handles, 60 + 2 * count)
    tally = check_runs(fleet.engine, runs, graphs.TASKS)
    refused = fleet.count_logged("refused a late report") - refused
    print(
        f"\nseed {seed}: {count} runs in {time.monotonic() - began:.1f} s; killed "
        f"{dict(killer.kills)}; {tally.lost} tries lost, {refused} late reports refused"
    )
    assert tally.failed == 0
    assert sum(killer.kills.values()) >= min(3, len(plan))


def test_kills_at_random_moments_lose_nothing_and_record_nothing_twice(
    fleet: Fleet, chaos_seed: int
) -> None:
    plan = [*["child"] * 5, *["worker"] * 2, "beat"]
    runs_under_fire(fleet, chaos_seed, 20, plan, longest=0.8)


def test_without_a_beat_a_worker_looks_after_the_runs_of_a_dead_one(fleet: Fleet) -> None:
    fleet.beats[0].kill()
    run = fleet.start(graphs.held_then_added, name="orphan")
    (pid,) = until(lambda: fleet.begun("orphan"), "a step's begin")
    (victim,) = [worker for worker in fleet.workers if pid in worker.children()]
    victim.kill()
    pids = until(
        lambda: fleet.begun("orphan") if len(fleet.begun("orphan")) > 1 else None, "another try"
    )
    fleet.let_go("orphan")
    assert run.result(timeout=20) == pids[1]
    losses = [(task.state, task.losses) for task in fleet.engine.tasks(run.id)]
    assert losses == [("failed", 0), ("completed", 1), ("completed", 0)]


def test_without_a_beat_runs_go_on(fleet: Fleet) -> None:
    fleet.beats[0].kill()
    with fleet.engine.database.write() as connection:  # committed, and never rung for
        run = fleet.engine.start(
            graphs.mixed.program(), graphs.mixed.name, {"n": 1}, connection=connection
        )
        connection.info.clear()
    assert run.result(timeout=30) == graphs.expected(1)


def test_runs_go_on_when_the_beat_is_back(fleet: Fleet) -> None:
    heard = fleet.count_logged("Task flowengine.watchdog")
    until(lambda: fleet.count_logged("Task flowengine.watchdog") > heard + 5, "ticks")
    runs: dict[str, Any] = {fleet.start(graphs.mixed, n=3).id: graphs.expected(3)}
    wait_for(fleet.engine, [fleet.engine.run(run_id) for run_id in runs], 30)
    check_runs(fleet.engine, runs, graphs.TASKS)


@pytest.mark.chaos
@pytest.mark.parametrize("round_number", range(3))
def test_two_hundred_runs_under_many_kills(
    fleet: Fleet, chaos_seed: int, round_number: int
) -> None:
    plan = [*["child"] * 40, *["worker"] * 12, "beat"]
    runs_under_fire(fleet, chaos_seed + round_number, 200, plan, longest=1.5)

"""Limits of workers hold while workers and their children are killed, and while they change.

An observer counts the rows that a server holds, and the tries that run in its pool children.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import text

from flowengine.engine.in_flight import is_alive
from tests.acceptance.celery import held_tries
from tests.acceptance.celery.conftest import QUICK_START, MakeFleet
from tests.acceptance.celery.mixed_load import Killer
from tests.acceptance.celery.rows import check_runs, ended, wait_for
from tests.celery_nodes import Fleet, until

TASKS, RUNS, CHILDREN = 3, 2, 4
#: Seconds in which a lowered limit is obeyed: a heartbeat, and the end of what runs.
OBEYED = 4.0
_HELD = text(
    "SELECT s.pid, count(*) AS tries, count(DISTINCT t.run_id) AS runs FROM flowengine_task t "
    "JOIN flowengine_server s ON s.boot_id = t.boot_id WHERE t.state = 'running' GROUP BY s.pid"
)


@pytest.fixture(scope="module")
def module_fleet(make_fleet: MakeFleet) -> Fleet:
    """One worker, with more pool children than it may hold tries; it stands in for the beat."""
    fleet = make_fleet(
        imports=held_tries.__name__,
        FLOWENGINE_MAX_TASKS=str(TASKS),
        FLOWENGINE_MAX_WORKFLOWS=str(RUNS),
    )
    fleet.add_worker("io", *QUICK_START, "-c", str(CHILDREN), wait=False)
    return fleet


class Observer:
    """Looks again and again, and compares with the limits that must be obeyed at that time."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._lock = threading.Lock()
        self._limits = [(0.0, TASKS, RUNS)]  #: with the time from which each counts alone
        self.most_tries = self.most_runs = self.most_alive = self.looks = 0
        self.violations: list[str] = []
        self._stop = threading.Event()

    def set_limits(self, tasks: int | None, runs: int | None) -> None:
        """Change the limits of the worker; None: those of its settings."""
        (name,) = {each.name for each in self._fleet.engine.workers.list()} or {""}
        self._fleet.engine.workers.set_limits(name, tasks=tasks, workflows=runs, actor="eva")
        with self._lock:
            now = time.monotonic()
            self._limits.append((now + OBEYED, tasks or TASKS, runs or RUNS))

    def allowed(self) -> tuple[int, int]:
        """Return the greatest of the limits that may be obeyed now."""
        with self._lock:
            now = time.monotonic()
            while len(self._limits) > 1 and self._limits[1][0] < now:
                del self._limits[0]
            return max(each[1] for each in self._limits), max(each[2] for each in self._limits)

    def look(self) -> None:
        tasks, runs = self.allowed()  # before: it is lowered with the time
        with self._fleet.engine.database.read() as session:
            rows = session.execute(_HELD).all()
        running = held_tries.alive(self._fleet.traces)
        # The rows of a killed worker stay until it is found dead, and its orphans finish their try:
        # a limit that was lowered since does not concern them.
        living = {pid for pid in {*running, *(row.pid for row in rows)} if is_alive(pid)}
        for row in rows:
            most, of = (tasks, runs) if row.pid in living else (CHILDREN, CHILDREN)
            if row.tries > most or row.runs > of:
                self.violations.append(f"{row.tries} tries of {row.runs} runs, not {most}, {of}")
        for pid, tries in running.items():
            if tries > (tasks if pid in living else CHILDREN):
                self.violations.append(f"{tries} tries run, not {tasks}")
        self.looks += 1
        self.most_tries = max(self.most_tries, *(row.tries for row in rows), 0)
        self.most_runs = max(self.most_runs, *(row.runs for row in rows), 0)
        self.most_alive = max(self.most_alive, *running.values(), 0)

    @contextmanager
    def looking(self) -> Iterator[None]:
        def look_on() -> None:
            while not self._stop.wait(0.01):
                self.look()

        thread = threading.Thread(target=look_on)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()


def run_under_limits(fleet: Fleet, seed: int, count: int, plan: list[str], longest: float) -> None:
    killer, observer = Killer(fleet, seed), Observer(fleet)
    killer.lots.shuffle(plan)
    began = time.monotonic()
    with observer.looking():
        runs = {fleet.start(held_tries.both, n=n).id: held_tries.expected(n) for n in range(count)}
        handles = [fleet.engine.run(run_id) for run_id in runs]
        # Before a change may lower the limit.
        until(lambda: observer.most_tries >= TASKS, "as many tries as the limit allows")
        for what in plan:
            if ended(fleet.engine, handles) == len(handles):
                break
            killer.wait(longest)
            if what == "limits":
                limits = killer.lots.choice([(1, None), (2, 1), (CHILDREN, CHILDREN), (None, None)])
                observer.set_limits(*limits)
                killer.kills["limits"] += 1
            else:
                killer.kill(what)
        wait_for(fleet.engine, handles, 60 + 2 * count)
        check_runs(fleet.engine, runs)
        # The kills have lost no slot: as many tries run again as the limits allow.
        observer.set_limits(None, None)
    print(
        f"\nseed {seed}: {count} runs in {time.monotonic() - began:.1f} s; {dict(killer.kills)}; "
        f"{observer.looks} looks, at most {observer.most_tries} tries of {observer.most_runs} "
        f"runs, {observer.most_alive} alive"
    )
    assert observer.violations == []
    assert sum(killer.kills.values()) >= min(3, len(plan))


def test_killed_children_and_live_changes_never_exceed_the_limits_and_lose_no_slot(
    fleet: Fleet, chaos_seed: int
) -> None:
    plan = [*["child"] * 3, *["limits"] * 2, "whole_worker"]
    run_under_limits(fleet, chaos_seed, 8, plan, longest=0.4)


@pytest.mark.chaos
@pytest.mark.parametrize("round_number", range(3))
def test_many_kills_and_changes_never_exceed_the_limits(
    fleet: Fleet, chaos_seed: int, round_number: int
) -> None:
    plan = [*["child"] * 30, *["limits"] * 10, *["whole_worker"] * 4, *["worker"] * 4]
    run_under_limits(fleet, chaos_seed + round_number, 60, plan, longest=1.0)

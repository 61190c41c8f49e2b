"""A seeded simulation of schedules: watchdogs, workers and an operator, interleaved.

Actors are interleaved by a seed, and die at any statement: see `tests/integration/interleaving.py`.
After each commit the rows are held against the laws: every tick of a timetable up to the next one
has an outcome, and one only; every tick with a run has that run; runs that must not overlap do not.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flowengine.engine import Engine
from flowengine.engine.recovery import begin_queued_runs, evaluate_reported_runs, serve_clock
from flowengine.errors import ScheduleRefused
from flowengine.evaluator.states import RunState
from flowengine.evaluator.triggers import Lost, Succeeded
from flowengine.scheduling import Schedule, Timetable, tick, tick_key, trigger_key
from flowengine.settings import Settings
from flowengine.store import ensure_schema
from flowengine.store.claims import WorkerIdentity
from flowengine.store.sqlite.database import SqliteDatabase
from tests.integration.engines import one
from tests.integration.interleaving import Scheduler, reborn

SEEDS = [0, *(pytest.param(n, marks=pytest.mark.chaos) for n in range(1, 12))]
START = 1_700_006_400_000
OVERLAPS = ("allow", "skip", "queue", "replace")
MANUAL = ("triggered", "backfilled")


class World:
    """One database with a schedule of each kind of overlap."""

    def __init__(self, path: Path, seed: int) -> None:
        self.url = f"sqlite:///{path}"
        self.now = START
        self.boots = 0
        self.scheduler = Scheduler(seed)
        self.random = self.scheduler.random
        self.settings = Settings()
        self.seen: Counter[str] = Counter()
        database = SqliteDatabase(self.url, clock=self.clock)
        ensure_schema(database, upgrade=True)
        engine = Engine(database)
        self.first: dict[str, int] = {}
        for overlap in OVERLAPS:
            catch_up = self.random.choice(["none", "last", "all"])
            schedule = Schedule(
                *("*/20 * * * * *",),
                overlap=overlap,  # type: ignore[arg-type]
                catch_up=catch_up,  # type: ignore[arg-type]
                inputs={"x": tick.utc},
                name=overlap,
            )
            info = engine.schedules.put(one(), "Flow", schedule)
            assert info.next_tick is not None
            self.first[overlap] = info.next_tick
        engine.close()
        self._rows = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._rows.row_factory = sqlite3.Row

    def clock(self) -> int:
        return self.now

    # --- actors ---

    def play(self) -> None:
        def nothing(_boot: str) -> None:
            self.seen["deaths"] += 1

        for number in range(3):
            act = reborn(self, self.settings, self._watch, nothing)
            self.scheduler.add(f"watchdog {number}", act, is_mortal=True)
        work = reborn(self, self.settings, self._work, nothing)
        self.scheduler.add("worker", work)
        self.scheduler.add("operator", reborn(self, self.settings, self._operate, nothing))
        self.scheduler.play()

    def _watch(self, engine: Engine, _boot: str) -> None:
        while self.seen["watches"] < 60:
            self.seen["watches"] += 1
            self.now += self.random.choice([0, 5_000, 20_000, 45_000, 300_000])
            serve_clock(engine)
            evaluate_reported_runs(engine)
            begin_queued_runs(engine)

    def _work(self, engine: Engine, boot: str) -> None:
        while self.seen["works"] < 60:
            self.seen["works"] += 1
            for task in engine.claim(["t.Work"], "default", WorkerIdentity("s", boot, 1), most=2):
                is_lost = self.random.random() < 0.1
                engine.report(task, Lost("gone") if is_lost else Succeeded({"y": 1}))

    def _operate(self, engine: Engine, _boot: str) -> None:
        for _ in range(12):
            name = self.random.choice(OVERLAPS)
            match self.random.choice(["pause", "resume", "trigger"]):
                case "pause":
                    engine.schedules.pause(name, actor="eva")
                case "resume":
                    engine.schedules.resume(name, actor="eva")
                case "trigger":
                    try:
                        engine.schedules.trigger(name, actor="eva", inputs={"x": "now"})
                    except ScheduleRefused:
                        self.seen["refused"] += 1
            self.now += 1_000

    # --- the laws ---

    def check(self) -> None:
        self._rows.execute("BEGIN")
        schedules = self._rows.execute("SELECT * FROM flowengine_schedule").fetchall()
        ticks = self._rows.execute("SELECT * FROM flowengine_tick ORDER BY nominal").fetchall()
        runs = {row["id"]: row for row in self._rows.execute("SELECT * FROM flowengine_run")}
        self._rows.execute("COMMIT")
        assert len(runs) == len([row for row in ticks if row["run_id"]]), "a run without its tick"
        for row in ticks:
            if row["run_id"] is not None:
                key_of = trigger_key if row["outcome"] == "triggered" else tick_key
                key = key_of(row["schedule"], row["nominal"])
                assert runs[row["run_id"]]["idempotency_key"] == key
        for schedule in schedules:
            assert schedule["error"] is None
            assert (schedule["due"] is not None) == (schedule["state"] == "active")
            own = [r for r in ticks if r["schedule"] == schedule["name"]]
            self._each_tick_has_one_outcome(
                schedule, [r for r in own if r["outcome"] not in MANUAL]
            )
            if schedule["name"] != "allow":
                states = Counter(runs[r["run_id"]]["state"] for r in own if r["run_id"])
                begun = sum(states[s] for s in RunState.OPEN if s != RunState.QUEUED)
                assert begun <= 1, f"{schedule['name']}: {states}"
                assert states[RunState.QUEUED] <= (schedule["name"] != "skip") * 2, states

    def _each_tick_has_one_outcome(self, schedule: Any, rows: list[Any]) -> None:
        definition = json.loads(schedule["definition"])
        timetable = Timetable(schedule["name"], Schedule.from_json(definition))
        at: int | None = self.first[schedule["name"]]
        for row in rows:
            assert row["nominal"] == at, f"{schedule['name']}: {at} has no outcome, or two"
            at = timetable.after(row["last"] or row["nominal"])
        assert at == schedule["next_tick"]

    def finish(self) -> Counter[str]:
        """Let what has begun end; return the states of all runs."""
        engine = Engine(SqliteDatabase(self.url, clock=self.clock))
        for name in OVERLAPS:
            engine.schedules.pause(name)
        for at in range(400):
            if at % 20 == 0 and all(run.is_final for run in engine.list(limit=10_000)):
                break
            evaluate_reported_runs(engine)
            begin_queued_runs(engine)
            self.now += 1_000
            for task in engine.claim(["t.Work"], "default", WorkerIdentity("s", "b", 1), most=9):
                engine.report(task, Succeeded({"y": 1}))
        self.check()
        states = Counter(run.state for run in engine.list(limit=10_000))
        engine.close()
        self._rows.close()
        return states


@pytest.mark.parametrize("seed", SEEDS)
def test_every_tick_has_one_outcome_whoever_dies(seed: int, tmp_path: Path) -> None:
    world = World(tmp_path / "flow.db", seed)
    world.play()
    states = world.finish()
    assert set(states) <= {RunState.COMPLETED, RunState.CANCELLED, RunState.FAILED}
    assert sum(states.values()) >= 4

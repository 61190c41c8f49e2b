"""Five watchdogs, ticks left out and made twice, random kills: one run per tick, none missing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass

import pytest
from sqlalchemy import text

from flowengine.engine import Engine
from flowengine.scheduling import Schedule, Timetable, tick, tick_key
from flowengine.store import Database, ensure_schema
from tests.acceptance.rival_watchdogs import ticking
from tests.servers import PostgresServer


@dataclass(frozen=True)
class Scale:
    schedules: int
    period: int  #: seconds
    seconds: float


SHORT = Scale(schedules=50, period=2, seconds=5)
LONG = Scale(schedules=1_000, period=10, seconds=60)


@pytest.mark.parametrize(
    "scale", [SHORT, pytest.param(LONG, marks=pytest.mark.chaos)], ids=["short", "long"]
)
def test_rival_watchdogs_start_one_run_per_tick(
    scale: Scale, postgres: PostgresServer, chaos_seed: int
) -> None:
    url = postgres.new_database()
    database = Database(url)
    ensure_schema(database, upgrade=True)
    engine = Engine(database)
    first = {}
    for number in range(scale.schedules):
        schedule = Schedule(
            every=scale.period,
            jitter=scale.period / 2,
            catch_up="all",
            inputs={"tick": tick.utc},
            name=f"rival-{number}",
        )
        info = engine.schedules.put(ticking.program(), ticking.name, schedule)
        assert info.next_tick is not None
        first[info.name] = info.next_tick
    words = ["-m", "tests.acceptance.rival_watchdogs", url, str(chaos_seed), str(scale.seconds)]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=scale.seconds + 120
    )
    assert done.returncode == 0, done.stderr
    deaths = json.loads(done.stdout.splitlines()[-1])
    engine.schedules.take_due()  # what the last of them has left
    runs = check(engine, first)
    print(f"{runs} runs of {scale.schedules} schedules; {deaths}; seed {chaos_seed}")
    assert runs >= scale.schedules * (scale.seconds / scale.period - 1)
    assert deaths["killed"] + deaths["killed_itself"] > 5
    engine.close()
    postgres.drop_database(url)


def check(engine: Engine, first: dict[str, int]) -> int:
    """Compare ticks and runs with the timetables; return the number of runs."""
    with engine.database.read() as session:
        rows = session.execute(
            text("SELECT schedule, nominal, outcome, run_id FROM flowengine_tick")
        )
        ticks: dict[str, dict[int, str | None]] = defaultdict(dict)
        for schedule, nominal, outcome, run_id in rows:
            assert outcome == "started"
            ticks[schedule][nominal] = run_id
        keys = Counter(
            session.execute(text("SELECT idempotency_key FROM flowengine_run")).scalars()
        )
        ids = set(session.execute(text("SELECT id FROM flowengine_run")).scalars())
    assert set(keys.values()) == {1}
    expected = set()
    for info in engine.schedules.list():
        assert (info.state, info.error) == ("active", None)
        timetable = Timetable(info.name, info.schedule)
        at: int | None = first[info.name]
        while at is not None and at != info.next_tick:
            assert ticks[info.name].pop(at, None) in ids, f"{info.name} has no run at {at}"
            expected.add(tick_key(info.name, at))
            at = timetable.after(at)
        assert not ticks[info.name], "a tick outside the timetable"
    assert keys.keys() == expected
    return len(ids)

"""Runs that wait cost rows only: an answer and a watchdog tick cost the same among many."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from benchmarks.growth import Counts, counted_engine
from flowengine import wait_for, workflow
from flowengine.engine import Engine
from flowengine.engine.watchdog import Watchdog
from tests.servers import PostgresServer

Counted = tuple[Engine, Counts]


@workflow
def asks(x: int) -> int:
    return x + wait_for("answer", int, timeout=timedelta(days=30))


@pytest.fixture(params=["sqlite", "postgresql"])
def counted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Counted]:
    if request.param == "sqlite":
        with counted_engine(f"sqlite:///{tmp_path}/waiting.db") as counted:
            yield counted
        return
    postgres: PostgresServer = request.getfixturevalue("postgres")
    url = postgres.new_database()
    with counted_engine(url) as counted:
        yield counted
    postgres.drop_database(url)


def start(engine: Engine, number: int) -> list[str]:
    inputs = [asks.inputs(x) for x in range(number)]
    return [run.id for run in engine.start_many(asks.program(), asks.name, inputs)]


def costs(engine: Engine, counts: Counts, waiting: list[str]) -> dict[str, tuple[int, ...]]:
    """Return the statements and rows of an answer and of a tick, each after a first one."""
    found = {}

    def tick() -> None:
        with engine.database.write() as session:
            session.locks.acquire("watchdog", "", 0, session.now())  # no tick is too early
        assert Watchdog(engine).tick()

    def answer() -> None:
        engine.send(waiting.pop(), "answer", 1)

    for act in (answer, tick):
        act()
        before = Counts(**vars(counts))
        act()
        found[act.__name__] = (counts.statements - before.statements, counts.rows - before.rows)
    return found


def test_an_answer_and_a_tick_cost_the_same_among_few_and_many_waiting_runs(
    counted: Counted,
) -> None:
    engine, counts = counted
    few = costs(engine, counts, start(engine, 20))
    assert costs(engine, counts, start(engine, 400)) == few


@pytest.mark.chaos
@pytest.mark.parametrize("counted", ["postgresql"], indirect=True)
def test_a_hundred_thousand_runs_wait_for_an_approval(counted: Counted) -> None:
    engine, counts = counted
    few = costs(engine, counts, start(engine, 100))
    start(engine, 10_000)
    process = psutil.Process()
    before = process.memory_info().rss
    waiting = [run_id for _ in range(9) for run_id in start(engine, 10_000)]
    grown = process.memory_info().rss - before
    many = costs(engine, counts, waiting)
    print(f"statements and rows: {few} among 100, {many} among 100,000; +{grown >> 20} MB")
    assert many == few
    # The ids in the list of the test, and the run cache, which has a limit.
    assert grown < 100 << 20

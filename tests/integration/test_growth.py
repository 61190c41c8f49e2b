"""Cost follows change: completing a step costs the same in a small run and in a large one.

Counted, not timed: see `benchmarks/growth.py`, which also measures the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from benchmarks.growth import SHAPES, Counts, Growth, counted_engine, measure
from flowengine.engine import Engine
from tests.servers import PostgresServer

Counted = tuple[Engine, Counts]


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Counted]:
    with counted_engine(f"sqlite:///{tmp_path}/growth.db") as counted:

        @event.listens_for(counted[0].database.engine, "connect")
        def _hurry(raw: Any, _record: Any) -> None:
            raw.execute("PRAGMA synchronous = OFF")  # nobody pulls the plug, and it is not timed

        yield counted


@pytest.fixture
def postgresql(postgres: PostgresServer) -> Iterator[Counted]:
    url = postgres.new_database()
    with counted_engine(url) as counted:
        yield counted
    postgres.drop_database(url)


#: An item of the foreach has two steps, a nesting of two lists is a square, and nobody
#: nests ten thousand levels deep. Growth shows at four times the size already:
#: `make test-chaos` goes to a hundred times. Rounds exceed the run cache at 300.
_LEVELS = {"recursion": [25, 100], "rounds": [10, 300]}
_SIZES = {"foreach": [25, 200], "nested": [100, 400], **_LEVELS}
#: On a server the others are part of the long run.
_ON_SERVER = [
    shape if shape in ("chain", "foreach", "join") else pytest.param(shape, marks=pytest.mark.chaos)
    for shape in SHAPES
]
_MANY = {"chain": [100, 10_000], "join": [100, 10_000], "foreach": [50, 5_000]}


def assert_constant(found: list[Growth], *measures: str) -> None:
    smallest = found[0]
    for larger in found[1:]:
        for name in measures:
            small, large = getattr(smallest, name), getattr(larger, name)
            # A join reads each of its inputs once; those of a small one come with the reports.
            # And a small run is remembered whole: of a large one rows are read once more.
            once = 2.0 if name == "rows" else 0.0
            # Less is no fault: what each row of a square costs is shared by more steps.
            assert large <= max(small * 1.1, small + once), (
                f"{name} per step: {small:.1f} in a run of {smallest.size}, "
                f"{large:.1f} in one of {larger.size}"
            )


@pytest.mark.parametrize("shape", SHAPES)
def test_sqlite_a_step_costs_the_same_in_a_run_of_any_size(sqlite: Counted, shape: str) -> None:
    engine, counts = sqlite
    # Instructions of SQLite's machine are counted too: they show a query without an index.
    sizes = _SIZES.get(shape, [50, 400])
    found = [measure(engine, counts, SHAPES[shape](size), size) for size in sizes]
    assert_constant(found, "statements", "written", "rows", "instructions")


@pytest.mark.chaos
@pytest.mark.parametrize("shape", _MANY)
def test_sqlite_a_step_costs_the_same_in_a_very_large_run(sqlite: Counted, shape: str) -> None:
    engine, counts = sqlite
    found = [measure(engine, counts, SHAPES[shape](size), size) for size in _MANY[shape]]
    assert_constant(found, "statements", "written", "rows", "instructions")


@pytest.mark.parametrize("shape", _ON_SERVER)
def test_postgres_a_step_costs_the_same_in_a_run_of_any_size(
    postgresql: Counted, shape: str
) -> None:
    engine, counts = postgresql
    sizes = _SIZES.get(shape, [50, 200])
    found = [measure(engine, counts, SHAPES[shape](size), size) for size in sizes]
    assert_constant(found, "statements", "written", "rows")


def test_the_counters_count_every_row_and_statement(sqlite: Counted) -> None:
    engine, counts = sqlite
    found = measure(engine, counts, SHAPES["chain"](10), 10)
    before = Counts(**vars(counts))
    assert len(engine.steps(engine.list()[0].id)) == 12
    assert counts.rows - before.rows == 1 + 1 + 10 + 12 + 1 + 1, "with its tasks, steps and program"
    assert found.instructions > found.statements > found.rows / 2 > 0


def test_a_step_costs_few_statements(sqlite: Counted) -> None:
    # No law, but a fence: a change that makes each step dearer should be meant.
    engine, counts = sqlite
    found = measure(engine, counts, SHAPES["chain"](50), 50)
    assert found.statements < 20
    assert found.rows < 10

"""The cost of schedules: of those that are due, and not of those that there are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from sqlalchemy import create_engine, text

from flowengine import event_facet, workflow
from flowengine.scheduling import Schedule
from tests.integration.test_costs import ROWS_READ, WorkingSet, working
from tests.servers import PostgresServer

DUE = 10
_COPY = """
INSERT INTO flowengine_schedule (tenant, name, workflow, program_hash, definition, source, state,
next_tick, due, created, updated)
SELECT tenant, name || n, workflow, program_hash, definition, source, state, next_tick, due, 0, 0
FROM flowengine_schedule, generate_series(1, :n) n WHERE name = 'one'"""


@event_facet(name="costs.note")
def note(n: int) -> int:
    return n


@workflow(name="costs.hourly")
def hourly() -> int:
    return note(1)


def make_due(work: WorkingSet) -> None:
    with work.engine.database.write() as session:
        session.execute(
            text(
                "UPDATE flowengine_schedule SET due = 1, next_tick = next_tick - 3600000 "
                "WHERE name IN (SELECT name FROM flowengine_schedule ORDER BY name LIMIT :n)"
            ),
            {"n": DUE},
        )


def rows_read(url: str) -> float:
    engine = create_engine(url)
    with engine.connect() as connection:  # a backend reports its reads when it ends
        read = connection.execute(text(ROWS_READ)).scalar_one()
    engine.dispose()
    return float(read)


def cost(postgres: PostgresServer, tmp_path: Path, schedules: int) -> tuple[Counter[str], float]:
    """The statements of a pass with ten due schedules, and the rows that PostgreSQL looks at."""
    url = postgres.new_database()
    with working(url, tmp_path) as work:
        work.engine.schedules.put(
            hourly.program(), hourly.name, Schedule(every="1h", name="one", catch_up="last")
        )
        with work.engine.database.write() as session:
            session.execute(text(_COPY), {"n": schedules - 1})
            session.execute(text("ANALYZE"))
        make_due(work)
        assert work.engine.schedules.take_due() == DUE  # plans its statements, once
        make_due(work)
        with work.engine.database.write() as session:  # the same ticks, as if they were new
            session.execute(text("UPDATE flowengine_run SET idempotency_key = NULL"))
            session.execute(text("DELETE FROM flowengine_tick"))
    before = rows_read(url)
    with working(url, tmp_path) as work:
        with work.counted() as statements:
            assert work.engine.schedules.take_due() == DUE
            assert work.engine.schedules.take_due() == 0
        counted = Counter(statements)
    rows = rows_read(url) - before
    postgres.drop_database(url)
    return counted, rows


def test_ten_due_of_ten_thousand_schedules_cost_what_ten_cost(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    few, few_rows = cost(postgres, tmp_path, DUE)
    many, many_rows = cost(postgres, tmp_path, 10_000)
    assert few == many
    assert sum(few.values()) <= 2 * 2 + 5 * DUE
    # Of 9,990 schedules more; the difference is index entries of rows that were changed.
    assert many_rows <= few_rows + 300, (few_rows, many_rows)

"""The cost of durable functions: rows and statements, counted; nothing for those that wait."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from flowengine.engine.liveness import LivenessWindow, observe
from flowengine.engine.recovery import notify_due_lists, recover
from tests.integration.engines import MovedClock, opened
from tests.integration.functions import bodies
from tests.integration.functions.workers import WITH_TASKS, worked
from tests.integration.test_costs import ROWS_READ, WorkingSet, working
from tests.servers import PostgresServer


@pytest.fixture(scope="module")
def work(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkingSet]:
    url = postgres.new_database()
    with working(url, tmp_path_factory.mktemp("costs")) as work:
        for flow in (bodies.chain, bodies.looks):
            work.run(flow, [3])  # it learns that the facets are quick
        yield work
    postgres.drop_database(url)


def step_rows(work: WorkingSet) -> int:
    with work.engine.database.read() as session:
        query = text("SELECT count(*) FROM flowengine_step WHERE run_id = :run")
        return int(session.connection.execute(query, {"run": work.runs[0].id}).scalar_one())


@pytest.mark.parametrize("count", [10, 100, 1_000])
def test_a_call_in_place_is_one_row_and_one_statement(work: WorkingSet, count: int) -> None:
    with work.counted() as statements:
        work.run(bodies.chain, [count])
    assert statements["WITH new_steps_"] == count
    assert sum(statements.values()) <= count + 12, statements
    assert work.messages == 1
    assert step_rows(work) == count + 3  # the workflow, its block, and the function


def test_fifty_calls_without_effects_are_one_statement(work: WorkingSet) -> None:
    with work.counted() as statements:
        work.run(bodies.looks, [500])
    assert statements["WITH new_steps_"] == 500 / 50 + 1
    assert step_rows(work) == 501 + 3


@pytest.mark.parametrize("runs", [2, 20])
def test_calls_of_functions_that_are_claimed_together_share_their_statements(
    work: WorkingSet, runs: int
) -> None:
    with work.counted() as statements:
        work.run(bodies.chain, *([[10]] * runs))
    assert statements["WITH new_steps_"] == 10
    assert step_rows(work) == 10 + 3


def test_a_gather_in_place_is_one_statement(work: WorkingSet) -> None:
    with work.counted() as statements:
        work.run(bodies.wide, [100])
    assert statements["WITH new_steps_"] == 1
    assert step_rows(work) == 100 + 3


_COPIED = {
    "flowengine_run": ("id", "root_run_id"),
    "flowengine_step": ("id", "run_id"),
    "flowengine_task": ("uuid", "run_id", "step_id"),
}


def copy_runs(url: str, number: int) -> None:
    """Add `number` copies of the runs in the database."""
    engine = create_engine(url)
    with engine.begin() as connection:
        for table, ids in _COPIED.items():
            columns = [
                row[0]
                for row in connection.execute(
                    text(
                        "SELECT column_name FROM information_schema.columns "
                        "WHERE table_name = :table ORDER BY ordinal_position"
                    ),
                    {"table": table},
                )
            ]
            values = [f"md5(n || t.{name})" if name in ids else f't."{name}"' for name in columns]
            names = ", ".join(f'"{name}"' for name in columns)
            connection.execute(
                text(
                    f"INSERT INTO {table} ({names}) SELECT {', '.join(values)} FROM {table} t, "
                    f"generate_series(1, {number}) n"
                )
            )
        connection.execute(text("ANALYZE"))
    with engine.begin() as connection:  # the reads so far are not those of a tick
        connection.execute(text("SELECT pg_stat_force_next_flush()"))
    engine.dispose()


def rows_of_a_tick(url: str) -> float:
    """Rows that PostgreSQL reads for ten passes of recovery."""

    def read() -> float:
        engine = create_engine(url)
        with engine.connect() as connection:  # a backend reports its reads when it ends
            found = float(connection.execute(text(ROWS_READ)).scalar_one())
        engine.dispose()
        return found

    before = read()
    with opened(url, clock=MovedClock()) as engine:
        for _ in range(10):
            with engine.database.read() as session:
                observation = observe(session, LivenessWindow(session.now()))
            recover(engine, observation, lambda server: None, notify_due_lists)
    return read() - before


def test_ten_thousand_suspended_functions_add_nothing_to_a_tick(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.new_database()
    with worked(url, tmp_path, **WITH_TASKS) as work:
        run = work.start(bodies.asks, "name")
        work.settle()
        assert not run.info().is_final
    few = rows_of_a_tick(url)
    copy_runs(url, 10_000)
    many = rows_of_a_tick(url)
    postgres.drop_database(url)
    assert many <= few + 100, (few, many)

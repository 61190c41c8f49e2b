"""Commits without a lock: a decision from an old revision is refused and made anew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from flowengine.engine import Engine
from flowengine.evaluator import RunState, TaskState
from flowengine.evaluator.triggers import Report, Succeeded
from flowengine.settings import Settings
from flowengine.store.claims import WorkerIdentity
from flowengine.store.postgres import executors
from flowengine.store.postgres.executors import PostgresExecutor
from flowengine.worker import TaskWorker
from tests.integration.engines import chain, claim, cut_off, opened, side_by_side

pytestmark = pytest.mark.each_database


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    with opened(database_url) as engine:
        yield engine


@pytest.fixture
def other(database_url: str) -> Iterator[Engine]:
    """Another process on the same database, as far as memory goes."""
    with opened(database_url) as engine:
        yield engine


def history(engine: Engine, run_id: str) -> list[int]:
    query = text("SELECT revision FROM flowengine_history WHERE run_id = :run ORDER BY revision")
    with engine.database.read() as connection:
        return list(connection.execute(query, {"run": run_id}).scalars())


def test_a_run_that_others_advanced_meanwhile_is_decided_anew(
    engine: Engine, other: Engine
) -> None:
    run = engine.start(chain("a", "b", "c", "d", "e"), "Flow", {}).id
    for number in range(5):
        # By turns: the run cache of each is out of date at its next turn.
        one = (engine, other)[number % 2]
        assert one.report(claim(one), Succeeded({"y": number}))
    assert engine.get(run).state == RunState.COMPLETED
    assert history(engine, run) == list(range(1, 7)), "no commit is lost, none is made twice"


def test_each_run_of_a_commit_is_accepted_or_refused_alone(engine: Engine) -> None:
    runs = [engine.start(chain("a", "b"), "Flow", {}).id for _ in range(3)]
    held = {
        task.workflow_id: task
        for task in engine.claim(["t.Work"], "default", WorkerIdentity(), most=3)
    }
    released = held[runs[1]]
    assert engine.release(released)
    accepted, _ = engine.report_many([Report(held[run], Succeeded({"y": 1})) for run in runs])
    assert accepted == {held[runs[0]].uuid, held[runs[2]].uuid}
    assert [engine.get(run).revision for run in runs] == [2, 1, 2]
    assert [task.state for task in engine.tasks(runs[1])] == [TaskState.PENDING]


def test_a_report_without_its_lease_does_not_refuse_others_of_the_run(engine: Engine) -> None:
    run = engine.start(side_by_side("a", "b", "c"), "Flow", {}).id
    first, second, third = engine.claim(["t.Work"], "default", WorkerIdentity(), most=3)
    assert engine.release(second)
    reports = [Report(task, Succeeded({"y": 1})) for task in (first, second, third)]
    accepted, _ = engine.report_many(reports)
    assert accepted == {first.uuid, third.uuid}
    assert engine.report(claim(engine), Succeeded({"y": 1}))
    assert engine.get(run).state == RunState.COMPLETED


def test_tasks_of_a_claim_whose_answer_was_lost_are_released(
    database_url: str, tmp_path: Path
) -> None:
    now = 1_000_000
    settings = Settings(heartbeat_interval=10, spool_directory=str(tmp_path))
    with opened(database_url, clock=lambda: now, settings=settings) as engine:
        me = WorkerIdentity("s", "b" * 32, 1)
        task_worker = TaskWorker(engine, me, lambda: ["t.Work"])
        run = engine.start(side_by_side("a", "b"), "Flow", {}).id
        engine.claim(["t.Work"], "default", me, most=2)  # and the answer is lost on its way
        task_worker.client.reconcile()
        assert {task.state for task in engine.tasks(run)} == {TaskState.RUNNING}, "it may be on it"
        now += 60_000
        task_worker.client.reconcile()
        assert {task.state for task in engine.tasks(run)} == {TaskState.PENDING}


# --- a connection that is cut ---


def test_a_commit_on_a_connection_that_was_cut_says_so_and_the_next_has_another(
    on_postgres: Engine,
) -> None:
    run = on_postgres.start(chain("a", "b", "c"), "Flow", {}).id
    assert on_postgres.report(claim(on_postgres), Succeeded({"y": 1}))
    with on_postgres.database.keep_connection():  # as a worker does while it has tasks
        task = claim(on_postgres)
        cut_off(on_postgres)
        with pytest.raises(DBAPIError) as problem:
            on_postgres.report_many([Report(task, Succeeded({"y": 2}))])
        assert problem.value.connection_invalidated
        # Statements prepared on the old connection do not exist on the new one.
        on_postgres.report_many([Report(task, Succeeded({"y": 2}))])
        on_postgres.report_many([Report(claim(on_postgres), Succeeded({"y": 3}))])
    assert on_postgres.get(run).state == RunState.COMPLETED


def test_a_statement_too_many_is_executed_without_being_prepared(
    on_postgres: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "_MAX_PREPARED", 1)
    run = on_postgres.start(chain("a", "b", "c"), "Flow", {}).id
    with on_postgres.database.keep_connection():
        for number in range(3):
            on_postgres.report_many([Report(claim(on_postgres), Succeeded({"y": number}))])
    assert on_postgres.get(run).state == RunState.COMPLETED


def test_an_error_of_a_commit_is_raised_as_by_the_driver(on_postgres: Engine) -> None:
    with pytest.raises(psycopg.errors.InvalidTextRepresentation), _fetching(on_postgres) as fetch:
        fetch("SELECT %s::integer::text", ["no number"])
    with _fetching(on_postgres) as fetch:
        assert fetch("SELECT %s::text", ["\N{SNOWMAN}"]) == ["\N{SNOWMAN}"]


@contextmanager
def _fetching(engine: Engine) -> Iterator[Any]:
    with engine.database.engine.connect() as connection:
        proxy = connection.connection
        prepared = proxy.info.setdefault("flowengine_prepared", {})
        yield PostgresExecutor(proxy.driver_connection, "", prepared).fetch_text_column

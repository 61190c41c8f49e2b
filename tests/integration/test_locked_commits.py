"""A portion is written while the next is decided; the whole stands or falls together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from flowengine import event_facet, foreach, workflow
from flowengine.authoring import Workflow
from flowengine.engine import Engine
from flowengine.evaluator import RunState
from flowengine.evaluator.triggers import Failed, Report, Succeeded
from flowengine.store.claims import WorkerIdentity
from tests.integration.engines import cut_off, dump, opened, watched

pytestmark = pytest.mark.each_database

WIDTH = 350


@event_facet
def double(n: int) -> int:
    return 2 * n


@workflow
def doubled(ns: list[int]) -> list[int]:
    return foreach(ns, lambda n: double(n))


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    with opened(database_url) as engine:
        yield engine


def start(engine: Engine, a_workflow: Workflow[..., Any] = doubled) -> str:
    inputs = a_workflow.inputs(list(range(WIDTH)))
    return engine.start(a_workflow.program(), a_workflow.name, inputs).id


def report_all(engine: Engine) -> None:
    """Report every task, and evaluate nothing."""
    while found := engine.claim([double.name], "default", WorkerIdentity(), most=50):
        ended = [Report(task, Succeeded({"result": 2 * (task.data or {})["n"]})) for task in found]
        engine.report_many(ended, in_chord=True)


def unconsumed(engine: Engine) -> int:
    query = text("SELECT count(*) FROM flowengine_task WHERE NOT taken_in")
    with engine.database.read() as connection:
        return int(connection.execute(query).scalar_one())


def test_waiting_reports_are_consumed_by_portions_in_one_transaction(on_postgres: Engine) -> None:
    run = start(on_postgres)
    report_all(on_postgres)
    assert unconsumed(on_postgres) == WIDTH
    sent: list[str] = []
    with watched(on_postgres, lambda sql, _given: sent.append(sql)):
        on_postgres.advance(run)
    assert sum(sql.startswith("WITH runs_") for sql in sent) == 4, "portions of a hundred"
    # Their rows are read before: no statement reads while another is being written.
    first = next(at for at, sql in enumerate(sent) if sql.startswith("WITH runs_"))
    assert all(sql.startswith("WITH runs_") for sql in sent[first:])
    assert on_postgres.get(run).outputs == {"result": [2 * n for n in range(WIDTH)]}


def test_nothing_is_written_when_the_server_goes_in_the_middle(on_postgres: Engine) -> None:
    run = start(on_postgres)
    report_all(on_postgres)
    before = dump(on_postgres)
    sent = 0

    def kill(sql: str, _given: Any) -> None:
        nonlocal sent
        sent += sql.startswith("WITH runs_")
        if sent == 3:
            cut_off(on_postgres)

    with watched(on_postgres, kill), pytest.raises(DBAPIError) as problem:
        on_postgres.advance(run)
    assert problem.value.connection_invalidated
    assert dump(on_postgres) == before
    on_postgres.advance(run)
    assert on_postgres.get(run).state == RunState.COMPLETED


def test_a_statement_that_fails_takes_all_portions_back(on_postgres: Engine) -> None:
    run = start(on_postgres)
    report_all(on_postgres)
    before = dump(on_postgres)
    sent: list[str] = []

    def spoil(sql: str, given: list[str]) -> None:
        sent.append(sql)
        if sum(sql.startswith("WITH runs_") for sql in sent) == 2:
            given[0] = given[0].replace('"revision":', '"revision":99999999999')

    with watched(on_postgres, spoil), pytest.raises(DBAPIError, match="out of range"):
        on_postgres.advance(run)
    assert dump(on_postgres) == before
    on_postgres.advance(run)
    assert on_postgres.get(run).state == RunState.COMPLETED


def test_an_old_client_library_writes_one_after_the_other(
    on_postgres: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psycopg.Pipeline, "is_supported", classmethod(lambda _cls: False))
    monkeypatch.setattr(psycopg.Connection, "pipeline", None)
    run = start(on_postgres)
    report_all(on_postgres)
    on_postgres.advance(run)
    assert on_postgres.get(run).state == RunState.COMPLETED


def test_reports_after_the_end_of_a_run_are_consumed(engine: Engine) -> None:
    """The first portion ends the run; the next ones must not stay in the inbox."""
    run = start(engine)
    while found := engine.claim([double.name], "default", WorkerIdentity(), most=50):
        failed = Failed({"type": "Oops", "message": "no"}, retry=False)
        engine.report_many([Report(task, failed) for task in found], in_chord=True)
    engine.advance(run)
    assert engine.get(run).state == RunState.FAILED
    assert unconsumed(engine) == 0


def test_parameters_that_stay_as_they_are_are_not_written_again(on_postgres: Engine) -> None:
    run = start(on_postgres)
    report_all(on_postgres)
    sent: list[tuple[str, Any]] = []
    with watched(on_postgres, lambda sql, given: sent.append((sql, given))):
        on_postgres.advance(run)
    written = [text for sql, given in sent if sql.startswith("WITH runs_") for text in given]
    assert not any('"params":"{' in text for text in written)
    with on_postgres.database.read() as session:
        kept = [step.params for step in session.steps.of_run(run) if step.facet_name]
    assert sorted(params["n"] for params in kept if "n" in params) == list(range(WIDTH))

"""A start with a key whose run has failed: returned, started again, or an error."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text

from flowengine import EarlierRunFailed, InvalidInputs, RunFailed, event_facet, workflow
from flowengine.assembly import EngineLauncher
from flowengine.engine import Engine
from flowengine.errors import AuthoringError
from flowengine.evaluator.states import RunState
from flowengine.evaluator.triggers import Failed, Succeeded
from flowengine.testing import Flow
from tests.integration.engines import claim, one, opened
from tests.integration.threads import TIMEOUT, Ready, in_processes, in_threads, wait_until
from tests.servers import PostgresServer


@event_facet
def pay(order: int) -> int:
    raise ValueError("no money")


@workflow
def sale(order: int) -> int:
    return pay(order)


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    with opened(database_url) as engine:
        yield engine


def started(engine: Engine, **options: Any) -> str:
    return engine.start(one(), "Flow", {"x": 1}, key="order 7", **options).id


def fail(engine: Engine) -> None:
    engine.report(claim(engine), Failed({"type": "Broken", "message": "no money"}, retry=False))


def failed_run(engine: Engine) -> str:
    run = started(engine)
    fail(engine)
    assert engine.get(run).state == RunState.FAILED
    return run


def test_a_failed_run_is_returned_by_default(engine: Engine) -> None:
    run = failed_run(engine)
    assert started(engine) == run
    assert started(engine, if_failed="return") == run


def test_a_failed_run_is_replaced_by_a_new_one_that_takes_its_key(engine: Engine) -> None:
    first = failed_run(engine)
    second = started(engine, if_failed="start")
    assert second != first
    assert [engine.get(run).key for run in (first, second)] == ["order 7", "order 7"]
    assert started(engine) == second, "the key belongs to the new run"
    assert started(engine, if_failed="start") == second, "a run that goes on is not replaced"
    fail(engine)
    third = started(engine, if_failed="start")
    assert third not in (first, second)
    engine.report(claim(engine), Succeeded({"y": 1}))
    assert started(engine, if_failed="start") == third, "nor one that has completed"
    assert {run.id: run.key for run in engine.list()} == dict.fromkeys(
        (first, second, third), "order 7"
    )


def test_a_failed_run_is_an_error_if_the_start_demands_it(engine: Engine) -> None:
    first = failed_run(engine)
    with pytest.raises(EarlierRunFailed) as refused:
        started(engine, if_failed="raise")
    assert isinstance(refused.value, RunFailed)
    assert refused.value.run_id == first
    for part in ("key 'order 7'", "Flow.a: Broken: no money", "if_failed='start'"):
        assert part in str(refused.value)
    assert [run.id for run in engine.list()] == [first]
    other = engine.start(one(), "Flow", {"x": 1}, key="order 8", if_failed="raise")
    assert started(engine, if_failed="start") not in (first, other.id)
    assert engine.start(one(), "Flow", {"x": 1}, key="order 8", if_failed="raise").id == other.id


def test_the_new_run_is_part_of_the_callers_transaction(engine: Engine) -> None:
    first = failed_run(engine)
    with engine.database.engine.connect() as connection, connection.begin() as transaction:
        inside = started(engine, if_failed="start", connection=connection)
        assert inside != first
        assert started(engine, if_failed="start", connection=connection) == inside
        transaction.rollback()
    assert started(engine) == first, "the failed run has its key again"
    with engine.database.engine.begin() as connection:
        second = started(engine, if_failed="start", connection=connection)
    assert started(engine) == second


def test_many_starts_have_a_key_each(engine: Engine) -> None:
    def keys_of(**options: Any) -> list[str]:
        inputs = [{"x": n} for n in range(3)]
        return [r.id for r in engine.start_many(one(), "Flow", inputs, keys="abc", **options)]

    first = keys_of()
    assert len(set(first)) == 3
    assert keys_of() == first
    fail(engine)
    (failed,) = [run.id for run in engine.list(state=RunState.FAILED)]
    with pytest.raises(EarlierRunFailed, match=failed):
        engine.start_many(one(), "Flow", [{}, {}], keys=["new", "a"], if_failed="raise")
    assert len(engine.list()) == 3, "all keys are looked up before the first start"
    second = keys_of(if_failed="start")
    assert [new == old for new, old in zip(second, first, strict=True)].count(True) == 2
    assert keys_of() == second
    twice = engine.start_many(one(), "Flow", [{}, {}], keys=["d", "d"], if_failed="start")
    assert twice[0].id == twice[1].id


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"key": "a", "if_failed": "again"}, "must be 'return', 'start' or 'raise', not 'again'"),
        ({"if_failed": "start"}, "the option if_failed needs a key"),
    ],
)
def test_an_invalid_option_is_refused(options: dict[str, Any], says: str) -> None:
    with Flow() as flow:
        with pytest.raises(InvalidInputs, match=says):
            sale.options(**options).start(1)
        with pytest.raises(InvalidInputs, match="one for each start, and are 1 for 2"):
            sale.start_many([{"order": 1}, {"order": 2}], keys=["a"])
        with pytest.raises(InvalidInputs, match="needs keys"):
            sale.options(if_failed="start").start_many([{"order": 1}])
        with pytest.raises(AuthoringError, match="keys="):
            sale.options(key="a").start_many([{"order": 1}])
        assert flow.engine.list() == []


def test_python_options_take_the_same() -> None:
    with Flow() as flow:
        first = sale.options(key="a").start(1)
        flow.settle()
        assert sale.options(key="a").start(1).id == first.id
        with pytest.raises(EarlierRunFailed, match="ValueError: no money"):
            sale.options(key="a", if_failed="raise").start(1)
        second = sale.options(key="a", if_failed="start").start(1)
        assert second.id != first.id
        flow.settle()
        again = sale.options(if_failed="start").start_many([{"order": 1}], keys=["a"])
        assert again[0].id not in (first.id, second.id)


# --- messages ---


def test_a_message_that_is_delivered_twice_starts_one_run() -> None:
    with Flow() as flow:
        launcher = EngineLauncher(flow.engine)

        def deliver(message_id: str) -> int:
            launcher.start_named(sale.name, {"order": 1}, "a", "start", message_id)
            flow.settle()
            return len(flow.engine.list())

        assert deliver("first") == 1
        assert deliver("first") == 1, "its run has failed, and is found by the message"
        assert deliver("second") == 2, "another message starts a run again"
        assert deliver("first") == 2
        assert deliver("second") == 2


# --- at the same moment ---


def test_one_of_many_concurrent_starts_replaces_a_failed_run(
    engine: Engine, database_url: str
) -> None:
    first = failed_run(engine)
    with opened(database_url) as other:
        for round_number in range(1, 4):
            calls = [partial(started, each, if_failed="start") for each in (engine, other) * 4]
            found = set(in_threads(calls))
            assert len(found) == 1
            assert first not in found
            assert len(engine.list()) == round_number + 1
            (first,) = found
            fail(engine)


def start_in_process(ready: Ready, url: str) -> list[str]:
    with opened(url) as engine:
        ready()
        return [
            run.id
            for run in engine.start_many(
                one(), "Flow", [{"x": 1}] * 3, keys=["a", "b", "c"], if_failed="start"
            )
        ]


def test_one_of_two_processes_replaces_failed_runs(engine: Engine, database_url: str) -> None:
    first = [r.id for r in engine.start_many(one(), "Flow", [{"x": 1}] * 3, keys=["a", "b", "c"])]
    for _ in first:
        fail(engine)
    one_process, other_process = in_processes(start_in_process, [(database_url,)] * 2)
    assert one_process == other_process
    assert not set(one_process) & set(first)
    assert len(engine.list()) == 6


def test_postgres_starts_that_wait_for_the_same_failed_run_make_one_new_run(
    postgres: PostgresServer,
) -> None:
    """All starts have seen the failed run before the first of them takes its key."""
    url = postgres.new_database()
    with opened(url) as engine, opened(url) as reading:
        first = failed_run(engine)

        def waiting() -> int:
            query = (
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
                "AND datname = current_database() AND query LIKE '%released_key%'"
            )
            with reading.database.read() as session:
                return int(session.execute(text(query)).scalar_one())

        with ThreadPoolExecutor(4) as pool:
            with engine.database.write() as session:
                assert session.runs.lock(first) is not None
                starts = [pool.submit(started, reading, if_failed="start") for _ in range(4)]
                wait_until(lambda: waiting() == 4, "four starts wait for the failed run")
            found = {start.result(TIMEOUT) for start in starts}
        assert len(found) == 1
        assert first not in found
        assert len(engine.list()) == 2
    postgres.drop_database(url)

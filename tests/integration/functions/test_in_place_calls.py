"""Calls in place: a row and no task, refused without the lease, with tasks after a death."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from flowengine import event_facet, workflow
from flowengine.engine import Run
from flowengine.errors import DatabaseReadOnly, StepFailed
from flowengine.evaluator import RunState
from flowengine.evaluator.states import ObjectType
from flowengine.evaluator.triggers import Lost
from flowengine.store.calls import Calls
from flowengine.worker import call_timeouts
from flowengine.worker.call_timeouts import WatchedCall
from flowengine.worker.step_context import StepContext, current_step
from tests.integration.functions import bodies
from tests.integration.functions.workers import IN_PLACE, Worked, worked
from tests.servers import PostgresServer

pytestmark = pytest.mark.each_database

OUTAGES = [
    OperationalError("", {}, psycopg.OperationalError("connection refused")),
    OperationalError("", {}, psycopg.errors.DeadlockDetected("two functions")),
    DatabaseReadOnly("sqlite:///flow.db"),
]
interrupt: list[Any] = []  #: called by the facet, once each


@event_facet
def watched(n: int) -> int:
    if interrupt:
        interrupt.pop()()
    return n + 1


@workflow
async def watched_chain(count: int) -> int:
    n = 0
    for _ in range(count):
        n = await watched(n)
    return n


passed: list[float] = []  #: seconds of code, since the test has begun


@event_facet
def counted(n: int) -> int:
    passed.append(0.1)
    return n + 1


@workflow
async def counted_chain(count: int) -> int:
    n = 0
    for _ in range(count):
        passed.append(0.2)
        n = await counted(n)
    return n


@workflow
async def computes(seconds: int) -> int:
    passed.append(float(seconds))
    return await counted(seconds)


@pytest.fixture
def work(database_url: str, tmp_path: Path) -> Iterator[Worked]:
    with worked(database_url, tmp_path, **IN_PLACE) as work:
        for flow in (bodies.chain, bodies.looks, watched_chain):
            work.run(flow, 3)  # the worker learns which facets are quick
        bodies.made.clear()
        yield work


def calls(run: Run[Any]) -> list[Any]:
    return [step for step in run.steps() if step.object_type == ObjectType.FUNCTION_CALL]


def tasks(work: Worked, run: Run[Any]) -> list[str]:
    return [task.name.rpartition(".")[2] for task in work.engine.tasks(run.id)]


def test_quick_calls_have_a_row_each_and_no_task(work: Worked) -> None:
    run = work.start(bodies.chain, 30)
    work.settle()
    assert run.result(timeout=0) == 31
    assert len(calls(run)) == 30
    assert tasks(work, run) == ["chain@1"]
    with work.engine.database.read() as session:
        header = session.runs.header(run.id)
    assert header is not None
    assert header.view.step_count == 30 + 3  # the workflow, its block and the function


def test_an_activation_that_has_lost_its_lease_records_nothing(work: Worked) -> None:
    run = work.start(watched_chain, 5)

    def lose() -> None:
        (task,) = [task for task in work.engine.tasks(run.id) if task.state == "running"]
        assert work.engine.end_try(run.id, task.uuid, task.lease, Lost("a watchdog said so"))

    interrupt.append(lose)
    work.settle()
    assert calls(run) == []
    work.settle()
    assert run.result(timeout=0) == 5
    assert [call.path.rpartition("#")[2] for call in calls(run)] == ["0", "1", "2", "3", "4"]


def test_after_a_death_the_next_call_has_a_task(work: Worked) -> None:
    run = work.start(watched_chain, 3)

    def die() -> None:
        raise SystemExit

    interrupt.append(die)
    with pytest.raises(SystemExit):
        work.settle()
    work.settle()
    assert run.result(timeout=0) == 3
    assert tasks(work, run).count("watched") == 1


@pytest.mark.parametrize("error", OUTAGES, ids=["unreachable", "deadlock", "read-only"])
def test_a_database_that_is_unavailable_is_neither_a_loss_nor_the_end_of_a_function(
    error: Exception, work: Worked, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = work.start(watched_chain, 3)
    insert = Calls.insert

    def refused(*_given: Any) -> bool:
        raise error

    monkeypatch.setattr(Calls, "insert", refused)
    for _ in range(10):  # more often than a function may lose its worker
        work.settle()
        work.clock.now += 1_000
    assert run.info().state == RunState.RUNNING
    monkeypatch.setattr(Calls, "insert", insert)
    work.settle()
    assert run.result(timeout=0) == 3
    assert {task.losses for task in work.engine.tasks(run.id)} == {0}
    assert tasks(work, run) == ["watched_chain@1"], "and its calls are still made in place"


def test_the_timeout_of_a_facet_holds_in_place(
    work: Worked, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        assert work.run(hurried, 1) == "2"
    silent, goes_on = threading.Event(), threading.Event()

    def hang() -> None:
        silent.set()
        assert goes_on.wait(60)

    interrupt.append(hang)
    monkeypatch.setattr(WatchedCall, "beat", lambda call: setattr(call, "due", 0.0))
    run = work.start(hurried, 1)
    thread = threading.Thread(target=work.settle)
    thread.start()
    assert silent.wait(60)
    while not calls(run):  # a thread of the worker reports it
        silent.wait(0.01)
    goes_on.set()
    thread.join()
    work.settle()
    assert run.result(timeout=0) == "no activity for more than its timeout of 60 s"


@event_facet(timeout=60.0)
def timed(n: int) -> int:
    if interrupt:
        interrupt.pop()()
    return n + 1


@workflow
async def hurried(n: int) -> str:
    try:
        return str(await timed(n))
    except StepFailed as problem:
        return str(problem)


def test_a_call_in_place_knows_its_step(work: Worked) -> None:
    found: list[StepContext] = []
    interrupt.append(lambda: found.append(current_step()))
    run = work.start(watched_chain, 1)
    work.settle()
    (call,) = calls(run)
    assert (found[0].path, found[0].idempotency_key) == (call.path, call.id)


def test_large_arguments_of_calls_in_place_are_kept_as_a_digest(work: Worked) -> None:
    for _ in range(3):
        run = work.start(unwrapped, 5)
        work.settle()
    assert run.result(timeout=0) == 5
    with work.engine.database.read() as session:
        stored = [session.steps.by_id(call.id) for call in calls(run)]
    assert [(call.params, bool(call.digest)) for call in stored if call] == [({}, True)]


@event_facet
def length(text: str) -> int:
    return len(text) // 10_000


@workflow
async def unwrapped(count: int) -> int:
    return await length("x" * 10_000 * count)


@event_facet(effects=False)
def read(n: int) -> int:
    bodies.made.append(f"read {n}")
    if interrupt and n == interrupt[-1][0]:
        interrupt.pop()[1]()
    return n + 1


@event_facet(effects=False, timeout=60.0)
def timed_read(n: int) -> int:
    if interrupt:
        interrupt.pop()[1]()
    return n + 1


@workflow
async def reads(count: int) -> int:
    n = 0
    for _ in range(count):
        n = await read(n)
    return n


@workflow
async def hurried_reads(n: int) -> str:
    for _ in range(3):
        n = await read(n)
    try:
        n = await timed_read(n)
    except StepFailed as problem:
        return f"{await read(n)}: {problem}"
    return str(n)


@pytest.mark.parametrize("outage", ["none", "before the statement", "before its answer"])
def test_a_read_that_times_out_leaves_no_gap_in_the_record(
    work: Worked, monkeypatch: pytest.MonkeyPatch, outage: str
) -> None:
    for _ in range(3):
        assert work.run(hurried_reads, 0) == "4"
    silent, goes_on = threading.Event(), threading.Event()

    def hang() -> None:
        silent.set()
        assert goes_on.wait(60)

    insert, outages = Calls.insert, [outage] if outage != "none" else []

    def insert_or_fail(store: Calls, *given: Any) -> Any:
        if outages and outages[-1] == "before the statement":
            raise ConnectionError(outages.pop())
        done = insert(store, *given)
        if outages:
            assert done()
            raise ConnectionError(outages.pop())
        return done

    interrupt.append((None, hang))
    monkeypatch.setattr(WatchedCall, "beat", lambda call: setattr(call, "due", 0.0))
    monkeypatch.setattr(call_timeouts, "_AGAIN", 0.01)
    monkeypatch.setattr(Calls, "insert", insert_or_fail)
    run = work.start(hurried_reads, 0)
    thread = threading.Thread(target=work.settle)
    thread.start()
    assert silent.wait(60)
    while len(calls(run)) < 4:  # a thread of the worker reports it
        silent.wait(0.01)
    goes_on.set()
    thread.join()
    work.settle()
    assert run.result(timeout=0) == "4: no activity for more than its timeout of 60 s"
    assert [call.path.rpartition("#")[2] for call in calls(run)] == ["0", "1", "2", "3", "4"]


def test_reads_are_recorded_fifty_at_a_time_and_none_is_made_twice(work: Worked) -> None:
    for _ in range(3):
        work.run(reads, 120)
    bodies.made.clear()
    run = work.start(reads, 120)
    work.settle()
    assert run.result(timeout=0) == 120
    assert len(bodies.made) == len(calls(run)) == 120


def test_reads_behind_a_lost_lease_are_dropped(work: Worked) -> None:
    """The refusal of the first fifty is heard when the next are recorded."""
    for _ in range(3):
        work.run(reads, 120)
    run = work.start(reads, 120)

    def lose() -> None:
        (task,) = [task for task in work.engine.tasks(run.id) if task.state == "running"]
        assert work.engine.end_try(run.id, task.uuid, task.lease, Lost("a watchdog said so"))

    interrupt.append((20, lose))
    work.settle()
    assert calls(run) == []
    work.settle()
    assert run.result(timeout=0) == 120
    assert [call.path.rpartition("#")[2] for call in calls(run)] == [str(n) for n in range(120)]


def test_a_read_may_use_the_database_while_the_last_ones_are_written(work: Worked) -> None:
    for _ in range(3):
        work.run(reads, 120)
    seen: list[Any] = []
    run = work.start(reads, 120)
    interrupt.append((60, lambda: seen.append(work.engine.get(run.id).state)))
    work.settle()
    assert run.result(timeout=0) == 120
    assert seen == [RunState.RUNNING]


def test_a_connection_that_is_lost_while_reads_are_written_costs_no_loss(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.new_database()

    def cut() -> None:
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

    with worked(url, tmp_path, **IN_PLACE) as work:
        for _ in range(3):
            work.run(reads, 120)
        run = work.start(reads, 120)
        interrupt.append((60, cut))
        for _ in range(3):
            work.settle()
            work.clock.now += 1_000
        assert run.result(timeout=0) == 120
        assert {task.losses for task in work.engine.tasks(run.id)} == {0}
    postgres.drop_database(url)


def test_a_function_with_many_quick_calls_is_as_quick_as_they_are(work: Worked) -> None:
    # Its activations are claimed in batches, then, as those calls would be if they had tasks.
    tries = work.worker._tries
    tries._activations.clock = lambda: sum(passed)
    for _ in range(10):
        assert work.run(counted_chain, 8) == 8
        assert work.run(computes, 3) == 4
    assert tries._sizing.is_quick(f"{counted_chain.name}@1"), "8 calls of 0.3 s, below 1 s each"
    assert not tries._sizing.is_quick(f"{computes.name}@1"), "3.1 s, with one call"

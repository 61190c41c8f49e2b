"""An error of the engine, its database or its broker is never the outcome of a step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import InternalError, OperationalError, ProgrammingError

from flowengine import event_facet, workflow
from flowengine.authoring import Breaker, event_facet_names
from flowengine.engine import Engine
from flowengine.errors import DatabaseReadOnly
from flowengine.evaluator import RunState, TaskState
from flowengine.settings import Settings
from flowengine.store.claims import WorkerIdentity
from flowengine.worker import TaskWorker, current_step
from flowengine.worker.spool import Spool
from tests.integration.engines import MovedClock, opened

ME = WorkerIdentity("s", "b" * 32, 1)
CALLS: list[int] = []

ERRORS = {
    "prepared statement": ProgrammingError("", {}, psycopg.errors.InvalidSqlStatementName("gone")),
    "read-only": InternalError("", {}, psycopg.errors.ReadOnlySqlTransaction("failover")),
    "unreachable": OperationalError("", {}, psycopg.OperationalError("connection refused")),
    "store": DatabaseReadOnly("sqlite:///flow.db"),
    "broker": ConnectionResetError("the broker"),
    "internal": AssertionError("a defect of the engine"),
}


@event_facet(name="errors.double")
def double(n: int) -> int:
    return 2 * n


@workflow(name="errors.doubled")
def doubled(n: int) -> int:
    return double(n)


@event_facet(name="errors.plan", on_loss="fail")
def plan(n: int) -> int:
    CALLS.append(n)
    return doubled.call(n)


@event_facet(name="errors.plan_badly")
def plan_badly(n: int) -> int:
    return doubled.call("seven")  # type: ignore[arg-type]


@event_facet(name="errors.beat")
def beat(n: int) -> bool:
    return current_step().heartbeat()


@event_facet(name="errors.guarded", breaker=Breaker("errors.service"))
def guarded(n: int) -> int:
    return n


@workflow(name="errors.planned")
def planned(n: int) -> int:
    return plan(n)


@workflow(name="errors.started")
def started(n: int) -> int:
    return doubled.start(n).result()


@workflow(name="errors.planned_badly")
def planned_badly(n: int) -> int:
    return plan_badly(n)


@workflow(name="errors.beaten")
def beaten(n: int) -> bool:
    return beat(n)


@workflow(name="errors.guarded_once")
def guarded_once(n: int) -> int:
    return guarded(n)


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
def engine(database_url: str, clock: MovedClock, tmp_path: Path) -> Iterator[Engine]:
    CALLS.clear()
    settings = Settings(spool_directory=str(tmp_path))
    with opened(database_url, settings=settings, clock=clock) as engine:
        yield engine


@pytest.fixture
def task_worker(engine: Engine) -> TaskWorker:
    task_worker = TaskWorker(engine, ME, event_facet_names)
    task_worker._background.begin = lambda: None  # type: ignore[method-assign]
    return task_worker


def start(engine: Engine, a_workflow: Any) -> Any:
    return engine.start(a_workflow.program(), a_workflow.name, {"n": 4})


def drain(task_worker: TaskWorker) -> None:
    while task_worker.drain("default"):
        pass


def tries(engine: Engine, run: Any) -> list[tuple[str, int, int]]:
    return [(task.state, task.try_number, task.losses) for task in engine.tasks(run.id)]


def failing(error: Exception) -> Any:
    def fail(*_given: Any, **_more: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize("a_workflow", [planned, started])
@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_a_child_run_that_cannot_be_started_is_started_later(
    error: Exception,
    a_workflow: Any,
    engine: Engine,
    task_worker: TaskWorker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = start(engine, a_workflow)
    spool = Spool(engine.settings.spool_directory)
    monkeypatch.setattr(engine, "start_child", failing(error))
    drain(task_worker)
    assert tries(engine, run) == [(TaskState.RUNNING, 1, 0)], "neither failed nor lost"
    task_worker.client.reconcile()
    assert tries(engine, run) == [(TaskState.RUNNING, 1, 0)], "its call is spooled"
    monkeypatch.undo()
    assert spool.deliver(engine) == 1
    drain(task_worker)
    task_worker.client.reconcile()
    assert run.result(timeout=0) == 8
    assert [(number, losses) for _, number, losses in tries(engine, run)] == [(1, 0)]
    assert len(CALLS) == (a_workflow is planned), "the facet is not called again"


def test_an_error_of_the_users_program_fails_the_step(
    engine: Engine, task_worker: TaskWorker
) -> None:
    run = start(engine, planned_badly)
    drain(task_worker)
    info = engine.get(run.id)
    assert info.error is not None
    assert (info.state, info.error["type"]) == (RunState.FAILED, "InvalidInputs")


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_a_heartbeat_that_cannot_be_written_does_not_fail_the_facet(
    error: Exception, engine: Engine, task_worker: TaskWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(engine, beaten)
    monkeypatch.setattr(engine, "heartbeat", failing(error))
    drain(task_worker)
    assert run.result(timeout=0) is True


def test_a_task_that_fails_before_its_facet_is_called_is_parked_and_not_counted(
    engine: Engine, task_worker: TaskWorker, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(engine, guarded_once)
    monkeypatch.setattr(
        task_worker._tries._breakers, "permit", failing(ConnectionResetError("Redis"))
    )
    with pytest.raises(ConnectionResetError):
        task_worker.drain("default")
    assert tries(engine, run) == [(TaskState.PENDING, 1, 0)]
    assert task_worker.drain("default") == 0, "it is not due at once"
    monkeypatch.undo()
    clock.now += 1_000
    drain(task_worker)
    assert run.result(timeout=0) == 4
    assert tries(engine, run) == [(TaskState.COMPLETED, 1, 0)]


def test_an_event_that_cannot_be_sent_does_not_change_the_outcome(engine: Engine) -> None:
    task_worker = TaskWorker(engine, ME, event_facet_names, show=failing(ERRORS["broker"]))
    task_worker._background.begin = lambda: None  # type: ignore[method-assign]
    run = start(engine, doubled)
    with pytest.raises(ConnectionResetError):
        task_worker.drain("default")
    assert run.result(timeout=0) == 8
    assert tries(engine, run) == [(TaskState.COMPLETED, 1, 0)]

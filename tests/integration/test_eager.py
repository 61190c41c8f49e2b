"""With `task_always_eager` a start executes the run in place, without worker and broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery
from sqlalchemy import create_engine

from flowengine import Retry, RunFailed, event_facet, foreach, gather, workflow
from flowengine.assembly import FlowEngine
from flowengine.authoring import set_launcher_source, set_task_list_source
from flowengine.settings import Settings
from tests.registries import empty_registry

THREADS: set[int] = set()
TRIES: list[int] = []


@event_facet(name="eager.double", task_list="somewhere")
def double(n: int) -> int:
    THREADS.add(threading.get_ident())
    return 2 * n


@event_facet(name="eager.flaky", retry=Retry(attempts=3, first_wait=0.01, factor=1))
def flaky(n: int) -> int:
    TRIES.append(n)
    if len(TRIES) < 3:
        raise ConnectionError("away")
    return n


@event_facet(name="eager.fails")
def fails(n: int) -> int:
    raise ValueError(f"not {n}")


@workflow(name="eager.doubled")
def doubled(numbers: list[int]) -> list[int]:
    return foreach(numbers, double)


@workflow(name="eager.outer")
def outer(n: int) -> int:
    return double(flaky(inner.start(n).result()))


@workflow(name="eager.inner")
def inner(n: int) -> int:
    return double(n)


@workflow(name="eager.function")
async def function(n: int) -> list[int]:
    found = await gather(double.acall(n), double.acall(n + 1))
    try:
        await fails.acall(n)
    except ValueError:
        found.append(await flaky.acall(await inner.acall(n)))
    return found


@event_facet(name="eager.starts")
def starts(n: int) -> int:
    return inner.start(n).result(timeout=0)


@event_facet(name="eager.goes_on")
def goes_on(n: int) -> int:
    return inner.call(n)


@workflow(name="eager.nested")
def nested(n: int) -> int:
    return starts(goes_on(n))


@workflow(name="eager.failing")
def failing(n: int) -> int:
    return fails(double(n))


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Celery]:
    before, lists = set_launcher_source(None), set_task_list_source(None)
    # Nothing listens there: a message would be an error, after a second.
    app = Celery("eager", broker="redis://127.0.0.1:1/0", set_as_current=False)
    settings = Settings(
        database_url=f"sqlite:///{tmp_path}/flow.db", spool_directory=str(tmp_path / "spool")
    )
    app.conf.task_always_eager = True
    FlowEngine(app, settings=settings)
    yield app
    app.flowengine.engine.close()
    set_launcher_source(before)
    set_task_list_source(lists)


def test_a_started_run_has_ended_when_start_returns(
    app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    THREADS.clear()
    run = doubled.start([1, 2, 3])
    assert app.flowengine.engine.get(run.id).outputs == {"result": [2, 4, 6]}
    assert run.result(timeout=0) == [2, 4, 6]
    assert {threading.get_ident()} == THREADS, "in the thread that starts it"
    assert not caplog.records, "no broker was asked"


def test_retries_and_child_runs_are_executed_too(app: Celery) -> None:
    TRIES.clear()
    assert outer.start(3).result(timeout=0) == 12
    assert len(TRIES) == 3


def test_a_durable_function_is_executed_with_its_calls_and_runs(app: Celery) -> None:
    TRIES.clear()
    assert function.start(3).result(timeout=0) == [6, 8, 6]
    assert len(TRIES) == 3


def test_a_step_may_start_a_run_and_wait_for_it(app: Celery) -> None:
    assert nested.start(2).result(timeout=0) == 8


def test_a_failed_run_raises_at_its_result(app: Celery) -> None:
    run = failing.start(2)
    with pytest.raises(RunFailed, match="ValueError: not 4"):
        run.result(timeout=0)


def test_many_runs_and_runs_by_message_are_executed_too(app: Celery) -> None:
    runs = doubled.start_many([{"numbers": [n]} for n in range(3)])
    assert [run.result(timeout=0) for run in runs] == [[0], [2], [4]]
    sent = app.tasks["flowengine.execute"].delay("eager.inner", {"n": 5}, "by-message")
    assert sent.state == "SUCCESS"
    (info,) = [info for info in app.flowengine.engine.list() if info.key == "by-message"]
    assert info.outputs == {"result": 10}


def test_a_run_inside_a_transaction_is_executed_when_its_result_is_asked_for(
    app: Celery, tmp_path: Path
) -> None:
    app.flowengine.engine  # noqa: B018 - creates the tables before the transaction
    engine = create_engine(f"sqlite:///{tmp_path}/flow.db")
    with engine.begin() as connection:
        run = inner.options(connection=connection).start(4)
    engine.dispose()
    assert run.result(timeout=0) == 8


def test_a_step_without_code_here_waits_for_its_answer(app: Celery) -> None:
    with empty_registry():
        asks = event_facet(name="eager.asks")(lambda n: n)

        @workflow(name="eager.asking")
        def asking(n: int) -> int:
            return double(asks(n))

        asking.program()
    run = asking.start(1)  # its facets are not registered here any more
    assert run.state == "RUNNING"
    engine = app.flowengine.engine
    (step,) = [step for step in engine.steps(run.id) if step.facet == "eager.asks"]
    engine.continue_step(step.id, {"result": 21})
    assert run.result(timeout=0) == 42


def test_an_app_becomes_eager_when_its_configuration_does(app: Celery) -> None:
    app.conf.task_always_eager = False
    in_workers = app.flowengine.process.engine
    assert app.flowengine.engine is in_workers
    app.conf.task_always_eager = True
    assert app.flowengine.engine is not in_workers
    assert inner.start(1).result(timeout=0) == 2
    in_workers.close()

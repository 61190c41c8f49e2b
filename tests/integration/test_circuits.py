"""Tasks that go through a circuit breaker: parked while it is open, and never counted."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from rich.console import Console

from flowengine import Breaker, Retry, RunFailed, event_facet, foreach, workflow
from flowengine.assembly.plugin import redis_of
from flowengine.authoring import event_facet_names
from flowengine.cli.tree import run_tree
from flowengine.dispatch import NullNotifier
from flowengine.engine import Engine
from flowengine.engine.recovery import notify_due_tasks
from flowengine.engine.run_tree import DrawnStep, outline
from flowengine.errors import InvalidSetting
from flowengine.evaluator import TaskDefinition, TaskState
from flowengine.settings import Settings
from flowengine.store.claims import WorkerIdentity
from flowengine.testing import Flow
from flowengine.web import styles
from flowengine.worker import Circuits, TaskWorker
from tests.integration.engines import opened, replace_notifier, watched
from tests.servers import RedisServer

SHOP = "the shop"
IS_WELL = threading.Event()
CALLS: list[int] = []


class Refused(Exception):
    """The service is well, and says no."""


@event_facet(
    breaker=Breaker(SHOP, failure_threshold=2, half_open_max_calls=1, ignore=(Refused,)),
    retry=Retry(attempts=2, first_wait=1),
)
def buy(n: int) -> int:
    CALLS.append(n)
    if n < 0:
        raise Refused("not for sale")
    if not IS_WELL.is_set():
        raise ConnectionError("the shop does not answer")
    return n


@event_facet
def other(n: int) -> int:
    return n


@workflow
def shopping(numbers: list[int]) -> list[int]:
    return foreach(numbers, lambda n: buy(n))


@workflow
def one(n: int) -> int:
    return buy(n)


@workflow
def both(n: int) -> list[int]:
    return [buy(n), other(n)]


@pytest.fixture(autouse=True)
def a_shop_that_is_well() -> None:
    IS_WELL.set()
    CALLS.clear()


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    with Flow(store_url=database_url, settings=Settings(breaker_timeout_seconds=60)) as flow:
        yield flow


def open_the_circuit(flow: Flow) -> None:
    """Fail as often as it takes. The run that does fails, too."""
    IS_WELL.clear()
    run = flow.start(one, 0)
    flow.settle()
    flow.clock.advance(seconds=1)
    flow.settle()
    with pytest.raises(RunFailed, match="does not answer"):
        run.result(timeout=0)
    CALLS.clear()


def pending(engine: Engine, run_id: str) -> list[tuple[int, int, int]]:
    """When each pending task is due, and what it has counted."""
    return [
        (task.due, task.try_number, task.losses)
        for task in engine.tasks(run_id)
        if task.state == TaskState.PENDING
    ]


# --- what becomes of tasks ---


def test_while_its_circuit_is_open_a_task_is_neither_run_nor_failed_nor_counted(
    flow: Flow,
) -> None:
    open_the_circuit(flow)
    run = flow.start(one, 1)
    flow.settle()
    assert not CALLS
    assert pending(flow.engine, run.id) == [(flow.clock.now + 60_000, 1, 0)]
    assert not run.info().is_final


def test_when_it_is_due_a_parked_task_is_run_and_its_retries_are_all_left(flow: Flow) -> None:
    open_the_circuit(flow)
    run = flow.start(one, 1)
    flow.settle()
    IS_WELL.set()
    flow.clock.advance(seconds=59.9)
    assert flow.settle() == 0
    flow.clock.advance(seconds=0.1)
    flow.settle()
    assert run.result(timeout=0) == 1
    assert [(task.try_number, task.losses) for task in flow.engine.tasks(run.id)] == [(1, 0)]


def test_a_probe_that_fails_opens_the_circuit_again_and_counts_as_a_try(flow: Flow) -> None:
    open_the_circuit(flow)
    run = flow.start(one, 1)
    flow.settle()
    flow.clock.advance(seconds=60)
    flow.settle()
    assert CALLS == [1]
    flow.clock.advance(seconds=1)
    flow.settle()
    assert CALLS == [1], "the retry is parked"
    assert pending(flow.engine, run.id) == [(flow.clock.now + 59_000, 2, 0)]


def test_one_task_that_is_not_let_through_spares_the_others_their_claim(flow: Flow) -> None:
    open_the_circuit(flow)
    run = flow.start(shopping, list(range(20)))
    worker = flow.worker("inline")
    task = worker.claim_next()
    assert task is not None
    assert not worker.work_on(task)
    assert worker.claim_next() is None
    assert {due for due, _, _ in pending(flow.engine, run.id)} == {flow.clock.now + 60_000}


def test_what_goes_through_no_circuit_goes_on(flow: Flow) -> None:
    open_the_circuit(flow)
    run = flow.start(both, 1)
    flow.settle()
    states = {task.name.rpartition(".")[2]: task.state for task in flow.engine.tasks(run.id)}
    assert states == {"buy": TaskState.PENDING, "other": TaskState.COMPLETED}


def test_a_whole_run_waits_its_circuit_out(flow: Flow) -> None:
    open_the_circuit(flow)
    IS_WELL.set()
    assert flow.run(shopping, [1, 2, 3, 4, 5]) == [1, 2, 3, 4, 5]


def test_errors_that_are_not_the_services_open_nothing(flow: Flow) -> None:
    for _ in range(3):
        with pytest.raises(RunFailed, match="not for sale"):
            flow.run(one, -1)
    assert flow.run(one, 1) == 1


def test_a_success_begins_the_count_of_failures_anew(flow: Flow) -> None:
    for _ in range(3):
        IS_WELL.clear()
        run = flow.start(one, 1)
        assert flow.settle() == 1
        IS_WELL.set()
        flow.clock.advance(seconds=1)
        assert flow.settle() == 1
        assert run.result(timeout=0) == 1


def test_a_circuit_is_what_the_program_of_the_run_says(flow: Flow) -> None:
    run = flow.start(both, 1)
    assert {task.name.rpartition(".")[2]: task.circuit for task in flow.engine.tasks(run.id)} == {
        "buy": SHOP,
        "other": "",
    }


def test_whoever_has_lost_the_task_parks_nothing(flow: Flow) -> None:
    run = flow.start(one, 1)
    worker = flow.worker("first")
    task = worker.claim(run, "buy")
    worker.die()
    flow.watchdog()
    again = flow.worker("second").claim(run, "buy")
    flow.engine.park([task], SHOP, 60)
    assert flow.worker("second").report(again, 7)
    assert run.result(timeout=0) == 7


# --- the bell ---


class CountingBell(NullNotifier):
    def __init__(self) -> None:
        self.rings: list[dict[str, int]] = []

    def notify(self, due: Mapping[str, int]) -> None:
        self.rings.append(dict(due))


def test_the_watchdog_rings_once_for_what_was_parked_when_it_is_due(flow: Flow) -> None:
    open_the_circuit(flow)
    flow.start(shopping, [1, 2, 3])
    flow.settle()
    notifier = CountingBell()
    replace_notifier(flow.engine, notifier)
    flow.clock.advance(seconds=59.9)
    notify_due_tasks(flow.engine, flow.engine.servers())
    assert notifier.rings == []
    flow.clock.advance(seconds=0.1)
    notify_due_tasks(flow.engine, flow.engine.servers())
    notify_due_tasks(flow.engine, flow.engine.servers())
    assert notifier.rings == [{"default": 3}]


def test_an_embedded_process_rings_for_itself_when_it_is_due(flow: Flow) -> None:
    open_the_circuit(flow)
    flow.start(one, 1)
    flow.settle()
    notifier = CountingBell()
    replace_notifier(flow.engine, notifier)
    flow.watchdog()
    assert notifier.rings == []
    flow.clock.advance(seconds=60)
    flow.watchdog()
    assert notifier.rings


# --- what people see ---


def test_a_step_says_which_circuit_it_waits_for_and_until_when(flow: Flow) -> None:
    open_the_circuit(flow)
    run = flow.start(one, 1)
    flow.settle()
    until = flow.clock.now + 60_000
    (step,) = [step for step in run.steps() if step.circuit]
    assert (step.circuit, step.parked_until) == (SHOP, until)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(run_tree(run.info(), run.steps(), flow.clock.now))
    assert f"waits for circuit {SHOP!r} until " in console.export_text()
    with flow.database.read() as connection:
        lines = outline(connection, run.id).lines
    drawn = [line for line in lines if isinstance(line, DrawnStep) and line.circuit]
    assert styles.step_look(drawn[0], flow.clock.now)[2] == (
        f"waits for circuit {SHOP!r} until {styles.moment(until)[11:]}"
    )
    assert styles.step_look(drawn[0], until)[2] == "waits for a worker"


def test_a_retry_that_is_not_due_waits_for_no_circuit(flow: Flow) -> None:
    IS_WELL.clear()
    run = flow.start(one, 1)
    flow.settle()
    assert pending(flow.engine, run.id) == [(flow.clock.now + 1000, 2, 0)]
    assert [step.parked_until for step in run.steps() if step.circuit] == [None]


# --- the hands of a worker ---


def test_a_worker_asks_once_for_all_of_a_hand_and_parks_them_in_one_statement(
    database_url: str,
) -> None:
    asked: list[str] = []

    class Shut(Circuits):
        def ask(self, task: Any) -> Any:
            asked.append(task.uuid)
            return super().ask(task)

    # A slice without end: how long a machine takes must not change what is counted.
    settings = Settings(
        quick_seconds=1.0, batch_max_wait=10.0, worker_time_slice=60, chord_time_slice=60
    )
    with opened(database_url, settings=settings) as engine:
        identity = WorkerIdentity("s", "b" * 32, 1)
        circuits = Shut(settings)
        task_worker = TaskWorker(engine, identity, event_facet_names, circuits=circuits)
        warm = engine.start(shopping.program(), shopping.name, {"numbers": [1, 2, 3]})
        task_worker.drain("default")
        assert warm.result(timeout=0) == [1, 2, 3]
        IS_WELL.clear()
        engine.start(shopping.program(), shopping.name, {"numbers": [1, 2]})
        task_worker.drain("default")
        run = engine.start(shopping.program(), shopping.name, {"numbers": list(range(40))})
        asked.clear()
        CALLS.clear()
        texts: list[str] = []
        with watched(engine, lambda text, _: texts.append(text)):
            assert task_worker.drain("default") == 0
        assert not CALLS
        assert len(asked) == 1
        assert len(pending(engine, run.id)) == 40
        if not database_url.startswith("sqlite"):
            assert len(texts) == 3, "a claim, the hand, and what waits in the list"


def test_what_goes_through_no_circuit_asks_nobody(database_url: str) -> None:
    class Untouched(Circuits):
        def ask(self, task: Any) -> Any:
            raise AssertionError(f"{task.name} asked")

    @workflow(name="t.plain_one")
    def plain(n: int) -> int:
        return other(n)

    with opened(database_url) as engine:
        circuits = Untouched(engine.settings)
        me = WorkerIdentity("s", "b" * 32, 1)
        task_worker = TaskWorker(engine, me, event_facet_names, circuits=circuits)
        run = engine.start(plain.program(), plain.name, {"n": 3})
        task_worker.drain("default")
        assert run.result(timeout=0) == 3


# --- Redis ---


@pytest.fixture
def shared(redis_server: RedisServer, database_url: str) -> Iterator[Callable[..., Flow]]:
    """Flows whose circuits are in one Redis, as if each were a process."""
    made: list[Flow] = []

    def make(**settings: Any) -> Flow:
        found = Settings(breaker_redis_url=redis_server.url, **settings)
        flow = Flow(store_url=database_url, settings=found)
        made.append(flow)
        return flow

    yield make
    for flow in made:
        flow.engine.close()


def test_a_circuit_that_one_process_opens_is_open_for_all(shared: Callable[..., Flow]) -> None:
    first, second = shared(), shared()
    IS_WELL.clear()
    run = first.start(one, 1)
    first.settle()
    first.clock.advance(seconds=1)
    first.settle()
    assert run.info().is_final
    IS_WELL.set()
    CALLS.clear()
    parked = second.start(one, 2)
    second.settle()
    assert not CALLS
    ((due, try_number, losses),) = pending(second.engine, parked.id)
    assert 0 < due - second.clock.now <= 60_000
    assert (try_number, losses) == (1, 0)


def test_while_redis_is_away_tasks_are_run_and_it_is_said_once(
    shared: Callable[..., Flow], redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    flow = shared()
    redis_server.stop()
    assert flow.run(shopping, [1, 2, 3]) == [1, 2, 3]
    said = [record for record in caplog.records if getattr(record, "action", "") == "breaker_alone"]
    assert len(said) == 1
    assert "calls are made" in said[0].getMessage()


def test_while_redis_is_away_tasks_are_parked_if_the_settings_say_so(
    shared: Callable[..., Flow], redis_server: RedisServer
) -> None:
    flow = shared(breaker_without_redis="park")
    redis_server.stop()
    run = flow.start(one, 1)
    flow.settle()
    assert not CALLS
    assert pending(flow.engine, run.id) == [(flow.clock.now + 1000, 1, 0)]


@pytest.mark.parametrize(
    ("broker", "backend", "found"),
    [
        ("redis://one:6379/0", "redis://two:6379/1", "redis://one:6379/0"),
        ("amqp://rabbit", "redis://two:6379/1", "redis://two:6379/1"),
        ("amqp://rabbit", "rpc://", ""),
        ("redis://one;redis://two", None, ""),
        ("rediss://one/0?ssl_cert_reqs=CERT_REQUIRED", None, ""),
    ],
)
def test_a_celery_app_has_a_redis_for_its_circuits_if_its_address_is_plain(
    broker: str, backend: str | None, found: str
) -> None:
    app = Celery("t", broker=broker, backend=backend, set_as_current=False)
    assert redis_of(app) == found


def test_workers_without_a_redis_are_told_that_they_share_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    circuits = Circuits(Settings(), "", shares=True)
    for _ in range(2):
        assert circuits.ask(TaskDefinition("u", "n", "", "r", "h", "s", circuit="alone")).granted
    said = [getattr(record, "action", "") for record in caplog.records]
    assert said == ["breaker_not_shared"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"breaker_without_redis": "fail"}, "BREAKER_WITHOUT_REDIS='fail' is not run or park"),
        ({"breaker_failure_threshold": 0}, "BREAKER_FAILURE_THRESHOLD='0' is not a whole number"),
        ({"breaker_timeout_seconds": 0.0}, "BREAKER_TIMEOUT_SECONDS='0.0' is not a number"),
        ({"breaker_half_open_max_calls": 0}, "BREAKER_HALF_OPEN_MAX_CALLS='0' is not a whole"),
        ({"breaker_redis_url": "amqp://x"}, "BREAKER_REDIS_URL='amqp://x' is not the address"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_at_the_start(
    wrong: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidSetting, match=message):
        Flow(settings=Settings(**wrong))

"""Tasks with a circuit breaker: parked while it is open, without counting a try."""

from __future__ import annotations

import io
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from redis import Redis
from rich.console import Console

from flowengine import Breaker, Retry, RunFailed, event_facet, foreach, workflow
from flowengine.assembly.plugin import redis_of
from flowengine.authoring import event_facet_names
from flowengine.cli.run_view import run_tree
from flowengine.dispatch import NullNotifier
from flowengine.engine import Engine
from flowengine.engine.recovery import notify_due_tasks
from flowengine.engine.run_tree import StepLine, load_run_tree
from flowengine.errors import InvalidSetting
from flowengine.evaluator import TaskDefinition, TaskState
from flowengine.settings import Settings
from flowengine.store.claims import WorkerIdentity
from flowengine.testing import Flow
from flowengine.web import styles
from flowengine.worker import CircuitBreakers, TaskWorker
from tests.integration.engines import opened, replace_notifier, watched
from tests.servers import RedisServer

SHOP = "the shop"
IS_UP = threading.Event()
CALLS: list[int] = []


class Refused(Exception):
    """The service is up and refuses the order."""


@event_facet(
    breaker=Breaker(SHOP, failure_threshold=2, half_open_max_calls=1, ignore=(Refused,)),
    retry=Retry(attempts=2, first_wait=1),
)
def buy(n: int) -> int:
    CALLS.append(n)
    if n < 0:
        raise Refused("not for sale")
    if not IS_UP.is_set():
        raise ConnectionError("the shop does not respond")
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
def shop_is_up() -> None:
    IS_UP.set()
    CALLS.clear()


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    with Flow(store_url=database_url, settings=Settings(breaker_timeout_seconds=60)) as flow:
        yield flow


def open_the_breaker(flow: Flow) -> None:
    """Fail a run as often as the threshold requires."""
    IS_UP.clear()
    run = flow.start(one, 0)
    flow.settle()
    flow.clock.advance(seconds=1)
    flow.settle()
    with pytest.raises(RunFailed, match="does not respond"):
        run.result(timeout=0)
    CALLS.clear()


def pending(engine: Engine, run_id: str) -> list[tuple[int, int, int]]:
    """Due time, try number and losses of each pending task."""
    return [
        (task.due, task.try_number, task.losses)
        for task in engine.tasks(run_id)
        if task.state == TaskState.PENDING
    ]


# --- parked tasks ---


def test_a_task_is_parked_without_counting_a_try_while_its_breaker_is_open(
    flow: Flow,
) -> None:
    open_the_breaker(flow)
    run = flow.start(one, 1)
    flow.settle()
    assert not CALLS
    assert pending(flow.engine, run.id) == [(flow.clock.now + 60_000, 1, 0)]
    assert not run.info().is_final


def test_a_parked_task_runs_when_it_is_due_with_all_its_retries(flow: Flow) -> None:
    open_the_breaker(flow)
    run = flow.start(one, 1)
    flow.settle()
    IS_UP.set()
    flow.clock.advance(seconds=59.9)
    assert flow.settle() == 0
    flow.clock.advance(seconds=0.1)
    flow.settle()
    assert run.result(timeout=0) == 1
    assert [(task.try_number, task.losses) for task in flow.engine.tasks(run.id)] == [(1, 0)]


def test_a_failed_probe_opens_the_breaker_again_and_counts_as_a_try(flow: Flow) -> None:
    open_the_breaker(flow)
    run = flow.start(one, 1)
    flow.settle()
    flow.clock.advance(seconds=60)
    flow.settle()
    assert CALLS == [1]
    flow.clock.advance(seconds=1)
    flow.settle()
    assert CALLS == [1], "the retry is parked"
    assert pending(flow.engine, run.id) == [(flow.clock.now + 59_000, 2, 0)]


def test_a_denied_task_parks_all_tasks_of_the_same_breaker(flow: Flow) -> None:
    open_the_breaker(flow)
    run = flow.start(shopping, list(range(20)))
    worker = flow.worker("inline")
    task = worker.claim_next()
    assert task is not None
    assert not worker.work_on(task)
    assert worker.claim_next() is None
    assert {due for due, _, _ in pending(flow.engine, run.id)} == {flow.clock.now + 60_000}


def test_tasks_without_a_breaker_run_while_a_breaker_is_open(flow: Flow) -> None:
    open_the_breaker(flow)
    run = flow.start(both, 1)
    flow.settle()
    states = {task.name.rpartition(".")[2]: task.state for task in flow.engine.tasks(run.id)}
    assert states == {"buy": TaskState.PENDING, "other": TaskState.COMPLETED}


def test_a_run_completes_when_its_breaker_closes(flow: Flow) -> None:
    open_the_breaker(flow)
    IS_UP.set()
    assert flow.run(shopping, [1, 2, 3, 4, 5]) == [1, 2, 3, 4, 5]


def test_ignored_errors_do_not_open_the_breaker(flow: Flow) -> None:
    for _ in range(3):
        with pytest.raises(RunFailed, match="not for sale"):
            flow.run(one, -1)
    assert flow.run(one, 1) == 1


def test_a_success_resets_the_failure_count(flow: Flow) -> None:
    for _ in range(3):
        IS_UP.clear()
        run = flow.start(one, 1)
        assert flow.settle() == 1
        IS_UP.set()
        flow.clock.advance(seconds=1)
        assert flow.settle() == 1
        assert run.result(timeout=0) == 1


def test_the_program_of_the_run_names_the_breaker(flow: Flow) -> None:
    run = flow.start(both, 1)
    assert {task.name.rpartition(".")[2]: task.circuit for task in flow.engine.tasks(run.id)} == {
        "buy": SHOP,
        "other": "",
    }


def test_parking_with_a_stale_lease_has_no_effect(flow: Flow) -> None:
    run = flow.start(one, 1)
    worker = flow.worker("first")
    task = worker.claim(run, "buy")
    worker.die()
    flow.watchdog()
    again = flow.worker("second").claim(run, "buy")
    flow.engine.park([task], SHOP, 60)
    assert flow.worker("second").report(again, 7)
    assert run.result(timeout=0) == 7


# --- wake-ups ---


class RecordingNotifier(NullNotifier):
    def __init__(self) -> None:
        self.wakeups: list[dict[str, int]] = []

    def notify(self, due: Mapping[str, int]) -> None:
        self.wakeups.append(dict(due))


def test_recovery_notifies_once_for_parked_tasks_that_are_due(flow: Flow) -> None:
    open_the_breaker(flow)
    flow.start(shopping, [1, 2, 3])
    flow.settle()
    notifier = RecordingNotifier()
    replace_notifier(flow.engine, notifier)
    flow.clock.advance(seconds=59.9)
    notify_due_tasks(flow.engine, flow.engine.servers())
    assert notifier.wakeups == []
    flow.clock.advance(seconds=0.1)
    notify_due_tasks(flow.engine, flow.engine.servers())
    notify_due_tasks(flow.engine, flow.engine.servers())
    assert notifier.wakeups == [{"default": 3}]


def test_an_embedded_process_notifies_itself_when_a_parked_task_is_due(flow: Flow) -> None:
    open_the_breaker(flow)
    flow.start(one, 1)
    flow.settle()
    notifier = RecordingNotifier()
    replace_notifier(flow.engine, notifier)
    flow.watchdog()
    assert notifier.wakeups == []
    flow.clock.advance(seconds=60)
    flow.watchdog()
    assert notifier.wakeups


# --- presentation ---


def test_a_step_shows_the_breaker_it_waits_for_and_until_when(flow: Flow) -> None:
    open_the_breaker(flow)
    run = flow.start(one, 1)
    flow.settle()
    until = flow.clock.now + 60_000
    (step,) = [step for step in run.steps() if step.circuit]
    assert (step.circuit, step.parked_until) == (SHOP, until)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(run_tree(run.info(), run.steps(), flow.clock.now))
    assert f"waits for circuit {SHOP!r} until " in console.export_text()
    with flow.database.read() as session:
        lines = load_run_tree(session, run.id).lines
    drawn = [line for line in lines if isinstance(line, StepLine) and line.circuit]
    assert styles.step_label(drawn[0], flow.clock.now)[2] == (
        f"waits for circuit {SHOP!r} until {styles.local_time(until)[11:]}"
    )
    assert styles.step_label(drawn[0], until)[2] == "waits for a worker"


def test_a_retry_that_is_not_due_shows_no_breaker(flow: Flow) -> None:
    IS_UP.clear()
    run = flow.start(one, 1)
    flow.settle()
    assert pending(flow.engine, run.id) == [(flow.clock.now + 1000, 2, 0)]
    assert [step.parked_until for step in run.steps() if step.circuit] == [None]


# --- batches of a worker ---


def test_a_worker_asks_once_for_a_batch_and_parks_it_in_one_statement(
    database_url: str,
) -> None:
    asked: list[str] = []

    class Recording(CircuitBreakers):
        def permit(self, task: Any) -> Any:
            asked.append(task.uuid)
            return super().permit(task)

    # A long time slice: the speed of the machine must not change the counts.
    settings = Settings(
        quick_seconds=1.0, batch_max_wait=10.0, worker_time_slice=60, chord_time_slice=60
    )
    with opened(database_url, settings=settings) as engine:
        identity = WorkerIdentity("s", "b" * 32, 1)
        breakers = Recording(settings)
        task_worker = TaskWorker(engine, identity, event_facet_names, breakers=breakers)
        warm = engine.start(shopping.program(), shopping.name, {"numbers": [1, 2, 3]})
        task_worker.drain("default")
        assert warm.result(timeout=0) == [1, 2, 3]
        IS_UP.clear()
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
            assert len(texts) == 3, "a claim, the batch, and the tasks of the list"


def test_a_task_without_a_breaker_asks_for_no_permit(database_url: str) -> None:
    class Unused(CircuitBreakers):
        def permit(self, task: Any) -> Any:
            raise AssertionError(f"{task.name} asked")

    @workflow(name="t.plain_one")
    def plain(n: int) -> int:
        return other(n)

    with opened(database_url) as engine:
        breakers = Unused(engine.settings)
        me = WorkerIdentity("s", "b" * 32, 1)
        task_worker = TaskWorker(engine, me, event_facet_names, breakers=breakers)
        run = engine.start(plain.program(), plain.name, {"n": 3})
        task_worker.drain("default")
        assert run.result(timeout=0) == 3


# --- Redis ---


@pytest.fixture
def shared(redis_server: RedisServer, database_url: str) -> Iterator[Callable[..., Flow]]:
    """Flows that share breakers in one Redis, like separate processes."""
    made: list[Flow] = []

    def make(**settings: Any) -> Flow:
        given = Settings(breaker_redis_url=redis_server.url, **settings)
        flow = Flow(store_url=database_url, settings=given)
        made.append(flow)
        return flow

    yield make
    for flow in made:
        flow.engine.close()


def test_a_breaker_that_one_process_opens_is_open_for_all(shared: Callable[..., Flow]) -> None:
    first, second = shared(), shared()
    IS_UP.clear()
    run = first.start(one, 1)
    first.settle()
    first.clock.advance(seconds=1)
    first.settle()
    assert run.info().is_final
    IS_UP.set()
    CALLS.clear()
    parked = second.start(one, 2)
    second.settle()
    assert not CALLS
    ((due, try_number, losses),) = pending(second.engine, parked.id)
    assert 0 < due - second.clock.now <= 60_000
    assert (try_number, losses) == (1, 0)


def test_tasks_run_while_redis_is_unreachable_and_it_is_logged_once(
    shared: Callable[..., Flow], redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    flow = shared()
    redis_server.stop()
    assert flow.run(shopping, [1, 2, 3]) == [1, 2, 3]
    actions = [(getattr(record, "action", ""), record) for record in caplog.records]
    logged = [record for action, record in actions if action == "breaker_redis_unreachable"]
    assert len(logged) == 1
    assert "calls are permitted" in logged[0].getMessage()


def test_tasks_are_parked_while_redis_is_unreachable_if_configured(
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
        (
            "rediss://:pw@one/0?ssl_cert_reqs=CERT_REQUIRED",
            None,
            "rediss://:pw@one/0?ssl_cert_reqs=required",
        ),
        ("amqp://rabbit", "rediss://two/1", "rediss://two/1"),
        ("redis+socket:///run/redis.sock?virtual_host=3", None, "unix:///run/redis.sock?db=3"),
        ("sentinel://one:26379", None, ""),
    ],
)
def test_breakers_use_the_redis_of_a_celery_app_if_there_is_one(
    broker: str, backend: str | None, found: str
) -> None:
    app = Celery("t", broker=broker, backend=backend, set_as_current=False)
    assert redis_of(app) == found
    if found:
        Redis.from_url(found).connection_pool.make_connection()  # redis-py accepts its options


@pytest.mark.parametrize(
    ("tls", "query"),
    [
        (True, "ssl_cert_reqs=none"),
        ({"ssl_cert_reqs": ssl.CERT_REQUIRED}, "ssl_cert_reqs=required"),
        (
            {"ssl_cert_reqs": "CERT_OPTIONAL", "ssl_ca_certs": "/etc/ca.pem"},
            "ssl_cert_reqs=optional&ssl_ca_certs=%2Fetc%2Fca.pem",
        ),
    ],
)
def test_breakers_use_tls_if_the_app_does(tls: object, query: str) -> None:
    app = Celery("t", broker="redis://one:6379/0", set_as_current=False)
    app.conf.broker_use_ssl = tls
    assert redis_of(app) == f"rediss://one:6379/0?{query}"


def test_the_address_of_the_breakers_may_be_written_as_celery_does() -> None:
    url = "rediss://one/0?ssl_cert_reqs=CERT_NONE"
    assert CircuitBreakers(Settings(breaker_redis_url=url), "", shares=True)
    with pytest.raises(InvalidSetting, match="FLOWENGINE_BREAKER_REDIS_URL"):
        CircuitBreakers(Settings(breaker_redis_url="redis://one;redis://two"))


def test_workers_without_a_redis_log_that_breakers_are_not_shared(
    caplog: pytest.LogCaptureFixture,
) -> None:
    breakers = CircuitBreakers(Settings(), "", shares=True)
    for _ in range(2):
        assert breakers.permit(TaskDefinition("u", "n", "", "r", "h", "s", circuit="alone")).granted
    logged = [getattr(record, "action", "") for record in caplog.records]
    assert logged == ["breaker_not_shared"]


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
def test_an_invalid_setting_is_refused_at_the_start(
    wrong: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidSetting, match=message):
        Flow(settings=Settings(**wrong))

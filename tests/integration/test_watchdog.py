"""The watchdog of a fleet: no storm, no hasty funerals, and one outcome for racing reports."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

import pytest
from sqlalchemy import text

from flowengine import Retry, event_facet, foreach, workflow
from flowengine.dispatch import NullNotifier
from flowengine.engine.watchdog import Watchdog
from flowengine.evaluator import RunState, StepState, TaskState
from flowengine.evaluator.triggers import Failed, Succeeded
from flowengine.store import recovery_queries
from flowengine.store.claims import WorkerIdentity
from flowengine.testing import Flow
from tests.integration.engines import replace_notifier
from tests.servers import PostgresServer


@event_facet
def slow(n: int) -> int:
    return n


@event_facet(retry=Retry(attempts=2, first_wait=10))
def shaky(n: int) -> int:
    raise ConnectionError("away")


@workflow
def many(numbers: list[int]) -> list[int]:
    return foreach(numbers, lambda n: slow(n))


@workflow
def one(n: int) -> int:
    return slow(n)


@workflow
def retried(n: int) -> int:
    return shaky(n)


class CountingBell(NullNotifier):
    def __init__(self) -> None:
        self.rings: list[dict[str, int]] = []

    def notify(self, due: Mapping[str, int]) -> None:
        self.rings.append(dict(due))


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    with Flow(store_url=database_url) as flow:
        replace_notifier(flow.engine, CountingBell())
        yield flow


def rings(flow: Flow) -> list[dict[str, int]]:
    assert isinstance(flow.engine.notifier, CountingBell)
    return flow.engine.notifier.rings


def let_pass(flow: Flow, watchdog: Watchdog, seconds: float) -> int:
    """Let time pass, a tick of the watchdog each second; return how often it looked."""
    looked = 0
    for _ in range(round(seconds)):
        flow.clock.advance(seconds=1)
        looked += watchdog.tick()
    return looked


def test_a_long_queue_brings_no_storm_of_messages(flow: Flow) -> None:
    flow.worker("w1")
    flow.start(many, list(range(10_000)))
    rings(flow).clear()
    assert let_pass(flow, Watchdog(flow.engine), 300) == 300
    again = flow.engine.settings.wakeup_repeat
    assert 1 <= len(rings(flow)) <= 300 / again + 1
    notifier = {"default": flow.engine.settings.wakeup_fanout}
    assert all(notify == notifier for notify in rings(flow)), "a bell per list, not per task"


def test_a_retry_is_rung_for_when_it_is_due_and_once(flow: Flow) -> None:
    flow.worker("w1")
    flow.start(retried, 1)
    flow.settle()
    rings(flow).clear()
    watchdog = Watchdog(flow.engine)
    let_pass(flow, watchdog, 9)
    assert rings(flow) == []
    let_pass(flow, watchdog, 1)
    assert rings(flow) == [{"default": 1}]


def test_two_watchdogs_look_as_often_as_one(flow: Flow) -> None:
    first, second = Watchdog(flow.engine), Watchdog(flow.engine)
    looked = 0
    for _ in range(20):
        flow.clock.advance(seconds=1)
        looked += first.tick() + second.tick()
    assert looked == 20


def test_a_silent_server_is_dead_after_its_patience(flow: Flow) -> None:
    run = flow.start(one, 1)
    flow.worker("w1").claim(run, "slow")
    watchdog = Watchdog(flow.engine)
    max_wait = flow.engine.settings.server_timeout
    let_pass(flow, watchdog, max_wait)
    assert [task.state for task in flow.engine.tasks(run.id)] == [TaskState.RUNNING]
    let_pass(flow, watchdog, 2)
    assert [task.losses for task in flow.engine.tasks(run.id)] == [0, 1]


def test_a_silent_embedded_process_is_dead_too_where_only_a_fleet_looks(flow: Flow) -> None:
    run = flow.start(one, 1)
    flow.worker("w1").claim(run, "slow")
    with flow.database.write() as connection:
        connection.execute(text("UPDATE flowengine_server SET lock_file = '/f.db.boots/1.lock'"))
    watchdog = Watchdog(flow.engine)
    let_pass(flow, watchdog, flow.engine.settings.server_timeout + 2)
    assert [task.losses for task in flow.engine.tasks(run.id)] == [0, 1]


def test_postgres_a_look_does_not_wait_for_a_run_that_somebody_evaluates(
    postgres: PostgresServer,
) -> None:
    url = postgres.new_database()
    with Flow(store_url=url) as flow, Flow(store_url=url) as other:
        run = flow.start(one, 1)
        with other.database.write() as connection:
            connection.execute(text("SELECT 1 FROM flowengine_run FOR UPDATE"))
            # It would wait for longer than a test may take.
            assert flow.engine.advance(run.id, wait=False) == []
    postgres.drop_database(url)


def test_no_alarm_is_put_on_a_run_that_has_ended_meanwhile(flow: Flow) -> None:
    run = flow.start(one, 1)
    flow.settle()
    assert run.info().state == RunState.COMPLETED
    with flow.database.write() as connection:
        recovery_queries.set_alarms(connection, {run.id: "waits for a worker"})
    assert run.info().alarm is None


def test_a_database_that_was_away_has_killed_nobody(flow: Flow) -> None:
    run = flow.start(one, 1)
    task = flow.worker("w1").claim(run, "slow")
    watchdog = Watchdog(flow.engine)
    watchdog.tick()
    flow.clock.advance(seconds=60)  # nobody could beat, and nobody could look
    let_pass(flow, watchdog, flow.engine.settings.server_timeout - 1)
    assert flow.engine.heartbeat(task), "its worker had no chance to show that it lives"


@pytest.mark.parametrize("round_", range(3))
def test_report_failure_and_timeout_racing_for_a_step_have_one_outcome(
    flow: Flow, round_: int
) -> None:
    run = flow.start(one, round_)
    (pending,) = flow.engine.tasks(run.id)
    task = flow.engine.claim_one(pending.uuid, WorkerIdentity())
    assert task is not None
    barrier = threading.Barrier(8)
    problems: list[BaseException] = []
    acts = [
        lambda: flow.engine.report(task, Succeeded({"result": 1})),
        lambda: flow.engine.fail_step(task.step_id, "by hand"),
        lambda: flow.engine.report(task, Failed({"type": "Timeout", "message": "late"})),
        lambda: flow.engine.continue_step(task.step_id, {"result": 2}),
    ]

    def act(number: int) -> None:
        try:
            barrier.wait()
            acts[number % 4]()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=act, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "deadlock"
    assert problems == []
    info = run.info()
    assert info.is_final
    assert info.open_steps == 0
    (step,) = [s for s in run.steps() if s.path == "one.slow"]
    expected = StepState.COMPLETE if info.state == "COMPLETED" else StepState.ERROR
    assert step.state == expected

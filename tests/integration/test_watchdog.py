"""The watchdog of a fleet: few wake-ups, patience after an outage, one outcome of a race."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

import pytest
from sqlalchemy import event, text

from flowengine import Retry, event_facet, foreach, workflow
from flowengine.dispatch import NullNotifier
from flowengine.engine import Run
from flowengine.engine.watchdog import Watchdog
from flowengine.evaluator import RunState, StepState, TaskState
from flowengine.evaluator.triggers import Failed, Succeeded
from flowengine.store.claims import WorkerIdentity
from flowengine.testing import Flow
from tests.integration.engines import replace_notifier
from tests.servers import PostgresServer


@event_facet
def slow(n: int) -> int:
    return n


@event_facet(timeout=3)
def impatient(n: int) -> int:
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
def timed(n: int) -> int:
    return impatient(n)


@workflow
def retried(n: int) -> int:
    return shaky(n)


class CountingNotifier(NullNotifier):
    def __init__(self) -> None:
        self.sent: list[dict[str, int]] = []

    def notify(self, due: Mapping[str, int]) -> None:
        self.sent.append(dict(due))


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    with Flow(store_url=database_url) as flow:
        replace_notifier(flow.engine, CountingNotifier())
        yield flow


def wakeups(flow: Flow) -> list[dict[str, int]]:
    assert isinstance(flow.engine.notifier, CountingNotifier)
    return flow.engine.notifier.sent


def let_pass(flow: Flow, watchdog: Watchdog, seconds: float) -> int:
    """Let time pass, a tick of the watchdog each second; return how many passes ran."""
    passes = 0
    for _ in range(round(seconds)):
        flow.clock.advance(seconds=1)
        passes += watchdog.tick()
    return passes


def test_a_long_queue_gets_one_wake_up_per_interval(flow: Flow) -> None:
    flow.worker("w1")
    flow.start(many, list(range(500)))
    wakeups(flow).clear()
    assert let_pass(flow, Watchdog(flow.engine), 40) == 40
    again = flow.engine.settings.wakeup_repeat
    assert 1 <= len(wakeups(flow)) <= 40 / again + 1
    expected = {"default": flow.engine.settings.wakeup_fanout}
    assert all(sent == expected for sent in wakeups(flow)), "one wake-up per list, not per task"


def test_a_due_retry_gets_one_wake_up(flow: Flow) -> None:
    flow.worker("w1")
    flow.start(retried, 1)
    flow.settle()
    wakeups(flow).clear()
    watchdog = Watchdog(flow.engine)
    let_pass(flow, watchdog, 9)
    assert wakeups(flow) == []
    let_pass(flow, watchdog, 1)
    assert wakeups(flow) == [{"default": 1}]


def test_two_watchdogs_run_as_many_passes_as_one(flow: Flow) -> None:
    first, second = Watchdog(flow.engine), Watchdog(flow.engine)
    passes = 0
    for _ in range(20):
        flow.clock.advance(seconds=1)
        passes += first.tick() + second.tick()
    assert passes == 20


def test_a_silent_server_is_dead_after_its_timeout(flow: Flow) -> None:
    run = flow.start(one, 1)
    flow.worker("w1").claim(run, "slow")
    watchdog = Watchdog(flow.engine)
    max_wait = flow.engine.settings.server_timeout
    let_pass(flow, watchdog, max_wait)
    assert [task.state for task in flow.engine.tasks(run.id)] == [TaskState.RUNNING]
    let_pass(flow, watchdog, 2)
    assert [task.losses for task in flow.engine.tasks(run.id)] == [0, 1]


def test_a_silent_embedded_process_is_dead_for_a_fleet_too(flow: Flow) -> None:
    run = flow.start(one, 1)
    flow.worker("w1").claim(run, "slow")
    with flow.database.write() as connection:
        connection.execute(text("UPDATE flowengine_server SET lock_file = '/f.db.boots/1.lock'"))
    watchdog = Watchdog(flow.engine)
    let_pass(flow, watchdog, flow.engine.settings.server_timeout + 2)
    assert [task.losses for task in flow.engine.tasks(run.id)] == [0, 1]


def test_postgres_an_evaluation_without_wait_skips_a_locked_run(
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


def test_an_ended_run_gets_no_alarm(flow: Flow) -> None:
    run = flow.start(one, 1)
    flow.settle()
    assert run.info().state == RunState.COMPLETED
    with flow.database.write() as session:
        session.recovery.set_alarms({run.id: "waits for a worker"})
    assert run.info().alarm is None


def test_an_outage_declares_no_server_dead(flow: Flow) -> None:
    run = flow.start(one, 1)
    task = flow.worker("w1").claim(run, "slow")
    watchdog = Watchdog(flow.engine)
    watchdog.tick()
    flow.clock.advance(seconds=60)  # no heartbeat arrives, and no pass runs
    let_pass(flow, watchdog, flow.engine.settings.server_timeout - 1)
    assert flow.engine.heartbeat(task), "its worker had no chance to send a heartbeat"


def test_an_idle_pass_costs_few_statements(flow: Flow) -> None:
    flow.worker("w1")
    watchdog = Watchdog(flow.engine)
    let_pass(flow, watchdog, 3)
    statements: list[str] = []

    def count(_c: object, _cursor: object, sql: str, *_: object) -> None:
        if not sql.startswith("BEGIN"):
            statements.append(sql)

    event.listen(flow.database.engine, "before_cursor_execute", count)
    let_pass(flow, watchdog, 1)
    # Two single statements look for work of runs and of agents: the driver executes them, unseen
    # here. test_costs counts them.
    assert len(statements) == 5, statements
    assert not watchdog.tick()
    assert len(statements) == 5 + 3, "a refused tick reads and tries the lease"


# --- silent tries ---


def states(flow: Flow, run: Run[int]) -> list[str]:
    return [task.state for task in flow.engine.tasks(run.id)]


def test_a_silent_try_fails_after_its_timeout(flow: Flow) -> None:
    run = flow.start(timed, 1)
    watchdog = Watchdog(flow.engine)
    let_pass(flow, watchdog, 5)
    flow.worker("w1").claim(run, "impatient")
    let_pass(flow, watchdog, 3)
    assert states(flow, run) == [TaskState.RUNNING]
    let_pass(flow, watchdog, 1)
    assert states(flow, run) == [TaskState.FAILED]


@pytest.mark.parametrize("before", [0, 2], ids=["just claimed", "silent for 2 s"])
def test_an_outage_longer_than_the_timeout_fails_no_living_try(flow: Flow, before: int) -> None:
    run = flow.start(timed, 1)
    watchdog = Watchdog(flow.engine)
    let_pass(flow, watchdog, 5)
    task = flow.worker("w1").claim(run, "impatient")
    let_pass(flow, watchdog, before)
    flow.clock.advance(seconds=6)  # no heartbeat arrives, and no pass runs
    let_pass(flow, watchdog, 3)
    assert states(flow, run) == [TaskState.RUNNING], "it had no chance to send a heartbeat"
    assert flow.engine.heartbeat(task)
    let_pass(flow, watchdog, 3)
    assert flow.worker("w1").report(task, 1), "the report that was spooled meanwhile"


def test_a_try_that_stays_silent_after_an_outage_fails(flow: Flow) -> None:
    run = flow.start(timed, 1)
    watchdog = Watchdog(flow.engine)
    let_pass(flow, watchdog, 5)
    flow.worker("w1").claim(run, "impatient")
    flow.clock.advance(seconds=6)
    let_pass(flow, watchdog, 5)
    assert states(flow, run) == [TaskState.FAILED]


def test_passes_of_another_process_count(flow: Flow) -> None:
    run = flow.start(timed, 1)
    let_pass(flow, Watchdog(flow.engine), 5)
    flow.worker("w1").claim(run, "impatient")
    for _ in range(4):
        let_pass(flow, Watchdog(flow.engine), 1)
    assert states(flow, run) == [TaskState.FAILED]


# --- a database clock that is set back ---


def test_a_clock_that_is_set_back_stops_no_watchdog(flow: Flow) -> None:
    watchdog = Watchdog(flow.engine)
    let_pass(flow, watchdog, 3)
    flow.clock.advance(hours=-1)
    assert watchdog.is_late(), "a worker stands in"
    assert let_pass(flow, watchdog, 10) == 10


def test_a_clock_that_is_set_back_stops_no_wake_up(flow: Flow) -> None:
    flow.worker("w1")
    watchdog = Watchdog(flow.engine)
    flow.start(one, 1)
    let_pass(flow, watchdog, 5)
    flow.clock.advance(hours=-1)
    flow.start(one, 2)  # due by the new clock
    wakeups(flow).clear()
    let_pass(flow, watchdog, 5)
    assert wakeups(flow) == [{"default": flow.engine.settings.wakeup_fanout}]


def test_a_clock_that_is_set_back_kills_nobody_and_hides_no_death(flow: Flow) -> None:
    watchdog = Watchdog(flow.engine)
    let_pass(flow, watchdog, 40)
    flow.clock.advance(hours=-1)
    run = flow.start(one, 1)
    flow.worker("w1").claim(run, "slow")
    let_pass(flow, watchdog, 29)
    assert states(flow, run) == [TaskState.RUNNING]
    let_pass(flow, watchdog, 3)
    assert [task.losses for task in flow.engine.tasks(run.id)] == [0, 1]


# --- a job that fails ---


def test_a_job_that_fails_is_raised_after_the_others_have_run(flow: Flow) -> None:
    flow.worker("w1")
    flow.start(one, 1)
    wakeups(flow).clear()
    flow.engine.recovery_jobs["broken"] = lambda: 1 // 0  # type: ignore[assignment,return-value]
    watchdog = Watchdog(flow.engine)
    for _ in range(40):
        flow.clock.advance(seconds=1)
        with pytest.raises(ZeroDivisionError):
            watchdog.tick()
    assert wakeups(flow), "a lost wake-up is sent again, although a job before it fails"


def test_jobs_that_fail_are_raised_together(flow: Flow) -> None:
    def fail() -> None:
        raise LookupError

    flow.engine.recovery_jobs |= {"first": fail, "second": fail}
    flow.clock.advance(seconds=1)
    with pytest.raises(ExceptionGroup) as raised:
        Watchdog(flow.engine).tick()
    assert [type(each) for each in raised.value.exceptions] == [LookupError, LookupError]


# --- a locked run ---


def test_postgres_a_locked_run_does_not_stop_the_pass(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    with Flow(store_url=url) as flow, Flow(store_url=url) as other:
        watchdog = Watchdog(flow.engine)
        let_pass(flow, watchdog, 1)
        runs = [flow.start(timed, n) for n in (1, 2)]
        dead = flow.start(one, 3)
        for run in runs:
            flow.worker("w1").claim(run, "impatient")
        flow.worker("w2").claim(dead, "slow")
        with other.database.write() as connection:
            lock = text("SELECT 1 FROM flowengine_run WHERE id IN (:one, :dead) FOR UPDATE")
            connection.execute(lock, {"one": runs[0].id, "dead": dead.id})
            let_pass(flow, watchdog, 40)  # it would wait for longer than a test may take
            assert [states(flow, run) for run in runs] == [[TaskState.RUNNING], [TaskState.FAILED]]
            assert states(flow, dead) == [TaskState.RUNNING]
        let_pass(flow, watchdog, 1)
        assert states(flow, runs[0])[0] == TaskState.FAILED
        assert [task.losses for task in flow.engine.tasks(dead.id)] == [0, 1]
    postgres.drop_database(url)


@pytest.mark.parametrize("round_", range(3))
def test_report_failure_and_timeout_racing_for_a_step_have_one_outcome(
    flow: Flow, round_: int
) -> None:
    run = flow.start(one, round_)
    (pending,) = flow.engine.tasks(run.id)
    task = flow.engine.claim_one(pending.uuid, pending.task_list_name, WorkerIdentity())
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

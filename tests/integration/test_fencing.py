"""Reports: each is consumed once, and only from the holder of the lease."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from flowengine.engine import Engine
from flowengine.errors import UnknownStep, ValueRefused
from flowengine.evaluator import RunState, StepState, TaskDefinition, TaskState
from flowengine.evaluator.triggers import Failed, Lost, Outcome, Report, Succeeded
from flowengine.program.nodes import EventOptions, RetryPolicy
from flowengine.store.claims import WorkerIdentity
from tests.integration.engines import Dump, chain, claim, dump, one, opened, side_by_side
from tests.integration.threads import (
    TIMEOUT,
    Ready,
    in_processes,
    in_threads,
    wait_until,
)
from tests.servers import PostgresServer

pytestmark = pytest.mark.each_database


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    with opened(database_url) as engine:
        yield engine


def started(engine: Engine, program: Any = None) -> str:
    return engine.start(program or one(), "Flow", {"x": 1}).id


LATE: list[Outcome] = [
    Succeeded({"y": "late"}),
    Failed({"type": "Late", "message": "too late"}),
    Lost("too late"),
]


def assert_refused(engine: Engine, task: TaskDefinition, outcomes: list[Outcome]) -> None:
    """Every report, in either way, is refused and leaves no trace."""
    before = dump(engine)
    for outcome in outcomes:
        assert not engine.report(task, outcome)
        assert not engine.record(task, outcome)
    assert not engine.release(task)
    assert not engine.heartbeat(task)
    assert dump(engine) == before


# --- twice, late, out of order ---


def test_a_report_delivered_twice_changes_nothing_the_second_time(engine: Engine) -> None:
    run = started(engine, chain("a", "b"))
    task = claim(engine)
    assert engine.report(task, Succeeded({"y": 2}))
    assert_refused(engine, task, [Succeeded({"y": 2}), *LATE])
    second = claim(engine)
    assert second.data == {"x": 2}
    assert engine.report(second, Succeeded({"y": 3}))
    assert_refused(engine, second, LATE)
    assert engine.run(run).outputs() == {"y": 3}


def test_a_large_result_that_is_refused_is_not_stored(engine: Engine) -> None:
    started(engine)
    task = claim(engine)
    assert engine.report(task, Succeeded({"y": 1}))
    assert_refused(engine, task, [Succeeded({"y": "large" * 5_000})])


@pytest.mark.parametrize("order", ["abc", "bca", "cab", "cba"])
def test_reports_in_any_order_end_the_same(engine: Engine, order: str) -> None:
    run = started(engine, side_by_side("a", "b", "c"))
    held = {claimed.data["x"]: claimed for claimed in (claim(engine) for _ in "abc")}  # type: ignore[index]
    for name in order:
        assert engine.report(held[name], Succeeded({"y": name.upper()}))
    assert engine.run(run).outputs() == {"a": "A", "b": "B", "c": "C"}


def test_reports_recorded_in_any_order_are_consumed_together(engine: Engine) -> None:
    run = started(engine, side_by_side("a", "b", "c"))
    held = [claim(engine) for _ in "abc"]
    for task in reversed(held):
        assert engine.record(task, Succeeded({"y": task.step_path}))
    assert engine.get(run).revision == 1
    engine.advance(run)
    assert engine.get(run).revision == 2
    assert engine.run(run).outputs() == {"a": "Flow.a", "b": "Flow.b", "c": "Flow.c"}


def test_one_advance_consumes_all_reports_however_many(engine: Engine) -> None:
    names = [f"s{i}" for i in range(1_100)]
    run = started(engine, side_by_side(*names))
    held = engine.claim(["t.Work"], "default", WorkerIdentity(), most=2_000)
    with engine.database.autocommit() as session:
        ended = [Report(task, Succeeded({"y": 1})) for task in held]
        assert len(session.reports.record(ended, 1)) == len(held)
    assert len(held) == len(names)
    engine.advance(run)
    assert engine.get(run).state == RunState.COMPLETED


def test_an_advance_without_reports_changes_nothing(engine: Engine) -> None:
    run = started(engine)
    before = dump(engine)
    engine.advance(run)
    assert dump(engine) == before


# --- the lease ---


def test_a_report_after_a_release_is_refused(engine: Engine) -> None:
    run = started(engine)
    first = claim(engine)
    assert engine.release(first)
    assert_refused(engine, first, LATE)
    second = claim(engine)
    assert second.uuid == first.uuid
    assert second.lease > first.lease
    assert_refused(engine, first, LATE)
    assert engine.heartbeat(second)
    assert engine.report(second, Succeeded({"y": "second"}))
    assert_refused(engine, first, LATE)
    assert engine.run(run).outputs() == {"y": "second"}


def test_a_lost_worker_that_comes_back_is_refused(engine: Engine) -> None:
    run = started(engine)
    lost = claim(engine)
    assert engine.report(lost, Lost("its machine was switched off"))
    assert_refused(engine, lost, LATE)
    again = claim(engine)
    assert again.uuid != lost.uuid
    assert (again.losses, again.try_number) == (1, 1), "a loss is not the facet's failure"
    assert_refused(engine, lost, LATE)
    assert engine.report(again, Succeeded({"y": "again"}))
    assert engine.run(run).outputs() == {"y": "again"}


def test_a_report_under_a_lease_that_never_was_is_refused(engine: Engine) -> None:
    started(engine)
    task = claim(engine)
    for lease in (0, task.lease + 1, -1):
        invented = TaskDefinition(**{n: getattr(task, n) for n in TaskDefinition.__slots__})
        invented.lease = lease
        assert_refused(engine, invented, LATE)


def test_a_task_that_nobody_claimed_takes_no_report(engine: Engine) -> None:
    run = started(engine)
    (pending,) = engine.tasks(run)
    assert_refused(engine, pending, LATE)


# --- at the same moment ---


def report_at_once(ready: Ready, url: str, task: TaskDefinition, who: str) -> bool:
    with opened(url) as engine:
        ready()
        return engine.report(task, Succeeded({"y": who}))


def assert_one_accepted(engine: Engine, run: str, accepted: dict[str, bool]) -> None:
    (winner,) = [who for who, was_accepted in accepted.items() if was_accepted]
    assert engine.run(run).outputs() == {"y": winner}
    assert len(dump(engine)["flowengine_history"]) == 2, "the start, and one report"


@pytest.mark.parametrize("way", ["report", "record"])
def test_one_of_many_threads_that_report_a_task_is_accepted(engine: Engine, way: str) -> None:
    run = started(engine)
    task = claim(engine)
    who = [f"thread {number}" for number in range(8)]

    def reporting(name: str) -> Callable[[], bool]:
        return lambda: getattr(engine, way)(task, Succeeded({"y": name}))

    accepted = dict(zip(who, in_threads([reporting(name) for name in who]), strict=True))
    engine.advance(run)
    assert_one_accepted(engine, run, accepted)


def test_one_of_two_processes_that_report_a_task_is_accepted(
    engine: Engine, database_url: str
) -> None:
    run = started(engine)
    task = claim(engine)
    who = ["one process", "another process"]
    answers = in_processes(report_at_once, [(database_url, task, name) for name in who])
    assert_one_accepted(engine, run, dict(zip(who, answers, strict=True)))


def test_one_of_a_concurrent_report_answer_and_loss_counts(engine: Engine) -> None:
    run = started(engine)
    task = claim(engine)
    in_threads(
        [
            lambda: engine.report(task, Succeeded({"y": "report"})),
            lambda: engine.continue_step(task.step_id, {"y": "answer"}),
            lambda: engine.report(task, Lost("gone")),
            lambda: engine.release(task),
        ]
    )
    assert engine.get(run).state == RunState.COMPLETED, "an answer waits for nobody"
    assert engine.get(run).outputs in ({"y": "report"}, {"y": "answer"})
    assert engine.get(run).open_steps == 0
    assert not [task for task in engine.tasks(run) if task.state in TaskState.OPEN]


# --- answers from outside ---


def without_facts(found: Dump) -> Dump:
    """All but the inbox, which keeps its facts."""
    return {name: rows for name, rows in found.items() if name != "flowengine_fact"}


def assert_changes_nothing(engine: Engine, act: Callable[[], None]) -> None:
    before = without_facts(dump(engine))
    act()
    assert without_facts(dump(engine)) == before
    with engine.database.read() as session:
        assert session.recovery.runs_with_facts() == [], "every fact is consumed"


def test_an_answer_given_twice_changes_nothing_the_second_time(engine: Engine) -> None:
    run = started(engine, chain("a", "b"))
    (task,) = engine.tasks(run)
    engine.continue_step(task.step_id, {"y": 2})
    assert_changes_nothing(engine, lambda: engine.continue_step(task.step_id, {"y": "late"}))
    assert_changes_nothing(engine, lambda: engine.fail_step(task.step_id, "too late"))
    assert claim(engine).data == {"x": 2}


def test_an_answer_to_a_step_that_has_completed_changes_nothing(engine: Engine) -> None:
    run = started(engine)
    task = claim(engine)
    assert engine.report(task, Succeeded({"y": 1}))
    assert engine.get(run).state == RunState.COMPLETED
    assert_changes_nothing(engine, lambda: engine.continue_step(task.step_id, {"y": "late"}))
    assert_changes_nothing(engine, lambda: engine.fail_step(task.step_id, "too late"))


def test_an_answer_fences_the_task_that_is_running(engine: Engine) -> None:
    run = started(engine)
    running = claim(engine)
    engine.continue_step(running.step_id, {"y": "from outside"})
    assert engine.run(run).outputs() == {"y": "from outside"}
    (task,) = engine.tasks(run)
    assert task.state == TaskState.CANCELED
    assert_refused(engine, running, LATE)


def test_an_answer_takes_a_waiting_task_away(engine: Engine) -> None:
    run = started(engine)
    (task,) = engine.tasks(run)
    engine.continue_step(task.step_id, {"y": 1})
    assert engine.claim_task(["t.Work"]) is None
    assert engine.get(run).state == RunState.COMPLETED


def test_failing_a_step_fails_the_run_with_the_reason_and_fences_its_task(engine: Engine) -> None:
    run = started(engine, chain("a", "b"))
    running = claim(engine)
    engine.fail_step(running.step_id, "the customer called it off")
    info = engine.get(run)
    assert info.state == RunState.FAILED
    assert info.error_text == "Flow.a: StepFailed: the customer called it off"
    states = {step.path: step.state for step in engine.steps(run)}
    assert states["Flow.a"] == StepState.ERROR
    assert states["Flow.b"] == StepState.SKIPPED
    assert_refused(engine, running, LATE)
    assert_changes_nothing(engine, lambda: engine.fail_step(running.step_id, "again"))
    assert_changes_nothing(engine, lambda: engine.continue_step(running.step_id, {"y": 1}))


def test_failing_a_step_is_not_retried(engine: Engine) -> None:
    run = started(engine, one(EventOptions(retry=RetryPolicy(attempts=5, first_wait=0))))
    (task,) = engine.tasks(run)
    engine.fail_step(task.step_id, "no")
    assert engine.get(run).state == RunState.FAILED
    assert len(engine.tasks(run)) == 1


def test_a_report_recorded_before_an_answer_wins(engine: Engine) -> None:
    run = started(engine)
    task = claim(engine)
    assert engine.record(task, Succeeded({"y": "report"}))
    engine.continue_step(task.step_id, {"y": "answer"})
    assert engine.run(run).outputs() == {"y": "report"}


@pytest.mark.parametrize("outcome", LATE[1:], ids=["failed", "lost"])
def test_an_answer_also_stops_the_try_that_a_failure_just_before_it_opened(
    engine: Engine, outcome: Outcome
) -> None:
    run = started(engine, one(EventOptions(retry=RetryPolicy(attempts=5, first_wait=0))))
    task = claim(engine)
    assert engine.record(task, outcome)
    engine.continue_step(task.step_id, {"y": "answer"})
    assert engine.run(run).outputs() == {"y": "answer"}
    assert engine.claim_task(["t.Work"]) is None, "a run that has ended has no task to claim"
    assert not [task for task in engine.tasks(run) if task.state in TaskState.OPEN]


def test_an_answer_to_a_step_that_does_not_exist_is_an_error(engine: Engine) -> None:
    started(engine)
    before = dump(engine)
    with pytest.raises(UnknownStep, match="no step 'nowhere'"):
        engine.continue_step("nowhere", {})
    with pytest.raises(UnknownStep, match="no step 'nowhere'"):
        engine.fail_step("nowhere", "why")
    assert dump(engine) == before


def test_an_answer_that_cannot_be_stored_is_refused_and_the_step_still_waits(
    engine: Engine,
) -> None:
    run = started(engine)
    (task,) = engine.tasks(run)
    before = dump(engine)
    with pytest.raises(ValueRefused, match="not JSON"):
        engine.continue_step(task.step_id, {"y": {1, 2}})
    with pytest.raises(ValueRefused, match="limit"):
        engine.continue_step(task.step_id, {"y": "x" * engine.settings.max_value_bytes})
    assert dump(engine) == before


# --- no wake-up is lost ---


def test_postgres_a_report_recorded_while_an_advance_waits_is_consumed_by_it(
    postgres: PostgresServer,
) -> None:
    url = postgres.new_database()
    with opened(url) as engine, opened(url) as waiting, opened(url) as reporting:
        run = started(engine)
        task = claim(engine)

        def waits_for_the_lock() -> bool:
            with reporting.database.read() as connection:
                found = connection.execute(
                    text(
                        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
                        "AND datname = current_database() AND query LIKE '%flowengine_run%'"
                    )
                )
                return bool(found.scalar_one() == 1)

        with ThreadPoolExecutor(1) as pool:
            with engine.database.write() as session:
                assert session.runs.lock(run) is not None
                advancing = pool.submit(waiting.advance, run)
                wait_until(waits_for_the_lock, "the advance waits for the run's lock")
                assert reporting.record(task, Succeeded({"y": "meanwhile"}))
                assert not advancing.done()
                assert reporting.get(run).state == RunState.RUNNING
            advancing.result(TIMEOUT)
        assert engine.run(run).outputs(timeout=0) == {"y": "meanwhile"}
    postgres.drop_database(url)


def test_sqlite_a_report_recorded_while_an_advance_waits_is_consumed_by_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/flow.db"
    with opened(url) as engine, opened(url) as waiting:
        run = started(engine)
        task = claim(engine)
        comes_to_the_lock = threading.Event()

        @event.listens_for(waiting.database.engine, "before_cursor_execute")
        def _notice(_c: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
            if statement == "BEGIN IMMEDIATE":
                comes_to_the_lock.set()

        with ThreadPoolExecutor(1) as pool:
            with engine.database.write() as session:
                advancing = pool.submit(waiting.advance, run)
                assert comes_to_the_lock.wait(TIMEOUT)
                ended = Report(task, Succeeded({"y": "mean"}))
                assert session.reports.record([ended], 1)
                assert not advancing.done()
            advancing.result(TIMEOUT)
        assert engine.run(run).outputs(timeout=0) == {"y": "mean"}


def record_many(ready: Ready, url: str, held: list[TaskDefinition]) -> int:
    with opened(url) as engine:
        ready()
        return sum(engine.record(task, Succeeded({"y": 1})) for task in held)


def test_a_process_that_records_and_one_that_advances_lose_nothing(
    engine: Engine, database_url: str
) -> None:
    run = started(engine, side_by_side(*(f"s{i}" for i in range(40))))
    held = [claim(engine) for _ in range(40)]
    with ThreadPoolExecutor(1) as pool:
        recording = pool.submit(in_processes, record_many, [(database_url, held)])

        def has_come_to_its_end() -> bool:
            engine.advance(run)
            return engine.get(run).is_final

        wait_until(has_come_to_its_end, "the run has come to its end")
        assert recording.result(TIMEOUT) == [40]
    assert engine.get(run).state == RunState.COMPLETED


def _now(engine: Engine) -> int:
    with engine.database.read() as session:
        return session.now()

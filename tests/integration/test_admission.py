"""Limits and rates: tasks wait in the database until a slot of each of their keys is free."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import event, text

from flowengine import (
    GiveUp,
    Limit,
    Rate,
    Retry,
    RetryAfter,
    RunFailed,
    current_step,
    event_facet,
    foreach,
    workflow,
)
from flowengine.engine import Run
from flowengine.evaluator import TaskState
from flowengine.testing import Flow
from tests.servers import PostgresServer

CUSTOMER = Limit("customer:{customer}", 2)


@event_facet(limit=CUSTOMER)
def call(customer: str, n: int) -> int:
    return n


@event_facet(rate=Rate("mail", 3, per=60))
def mail(n: int) -> int:
    return n


@event_facet(limit=(Limit("api", 3), Limit("tenant:{customer}", 2)))
def both(customer: str, n: int) -> int:
    return n


@event_facet(limit=Limit("slow", 1), rate=Rate("slow", 1, per=10))
def slow(n: int) -> int:
    return n


@event_facet(limit=Limit("flaky", 1), retry=Retry(attempts=2, first_wait=30))
def flaky(n: int) -> int:
    if current_step().try_number == 1:
        raise ConnectionError("no answer")
    return n


@workflow
def calls(customer: str, count: int) -> list[int]:
    return foreach(list(range(5)), lambda n: call(customer, n))


@workflow
def ten_calls(customer: str) -> list[int]:
    return foreach(list(range(10)), lambda n: call(customer, n))


@workflow
def mails() -> list[int]:
    return foreach(list(range(7)), lambda n: mail(n))


@workflow
def of_both(customer: str) -> list[int]:
    return foreach(list(range(4)), lambda n: both(customer, n))


@workflow
def slowly() -> list[int]:
    return foreach(list(range(3)), lambda n: slow(n))


@workflow
def slowly_once(n: int) -> int:
    return slow(n)


@workflow
def flakily(n: int) -> int:
    return flaky(n)


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    with Flow(store_url=database_url) as flow:
        yield flow


def states(flow: Flow, *runs: Run[Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for run in runs:
        for task in flow.engine.tasks(run.id):
            found[task.state] = found.get(task.state, 0) + 1
    return found


def slots(flow: Flow) -> dict[str, int]:
    with flow.database.read() as session:
        rows = session.connection.execute(
            text("SELECT key, count(*) FROM flowengine_slot GROUP BY key")
        )
        return {key: count for key, count in rows}  # noqa: C416


def queues(flow: Flow) -> int:
    with flow.database.read() as session:
        return int(
            session.connection.execute(text("SELECT count(*) FROM flowengine_queue")).scalar()
        )


def test_as_many_tasks_are_claimable_as_their_limit_allows(flow: Flow) -> None:
    one, other = flow.start(calls, "eva", 5), flow.start(calls, "bob", 5)
    assert states(flow, one) == {"pending": 2, "waiting": 3}
    assert states(flow, other) == {"pending": 2, "waiting": 3}
    assert slots(flow) == {"limit:customer:eva": 2, "limit:customer:bob": 2}


def test_the_end_of_a_task_admits_the_next_in_order(flow: Flow) -> None:
    run, worker = flow.start(calls, "eva", 5), flow.worker("w")
    done = []
    while task := worker.claim_next():
        assert len([t for t in flow.engine.tasks(run.id) if t.state in TaskState.ADMITTED]) <= 2
        worker.work_on(task)
        done.append(task.step_path)
    assert run.result(timeout=0) == [0, 1, 2, 3, 4]
    assert done == sorted(done)
    flow.watchdog()
    assert queues(flow) == 0


def test_a_limit_counts_the_tasks_of_all_runs(flow: Flow) -> None:
    runs = [flow.start(calls, "eva", 5) for _ in range(3)]
    assert states(flow, *runs) == {"pending": 2, "waiting": 13}
    flow.settle()
    assert [run.result(timeout=0) for run in runs] == [[0, 1, 2, 3, 4]] * 3


def test_a_wide_loop_with_a_limit_is_counted_like_any_other(flow: Flow) -> None:
    run = flow.start(ten_calls, "eva")
    assert states(flow, run) == {"pending": 2, "waiting": 8}
    flow.settle()
    assert run.result(timeout=0) == list(range(10))


def test_a_lost_worker_gives_its_slots_back(flow: Flow) -> None:
    run, victim = flow.start(calls, "eva", 5), flow.worker("victim")
    assert victim.claim_next()
    assert victim.claim_next()
    assert flow.settle() == 0
    victim.die()
    flow.watchdog()
    assert states(flow, run)["pending"] == 2
    flow.settle()
    assert run.result(timeout=0) == [0, 1, 2, 3, 4]


def test_a_lost_admission_is_made_up_by_recovery(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(flow.engine.after_commit, "admit", lambda *_: None)
        run = flow.start(calls, "eva", 5)
        assert states(flow, run) == {"waiting": 5}
    flow.watchdog()
    assert states(flow, run) == {"pending": 2, "waiting": 3}
    with monkeypatch.context() as patched:
        patched.setattr(flow.engine.after_commit, "admit", lambda *_: None)
        assert flow.settle() == 2
        assert states(flow, run) == {"completed": 2, "waiting": 3}
    flow.watchdog()
    flow.settle()
    assert run.result(timeout=0) == [0, 1, 2, 3, 4]


def test_a_step_that_is_answered_from_outside_frees_its_slot(flow: Flow) -> None:
    run, worker = flow.start(calls, "eva", 5), flow.worker("w")
    task = worker.claim_next()
    assert task is not None
    flow.engine.continue_step(task.step_id, 0)
    assert states(flow, run) == {"canceled": 1, "pending": 2, "waiting": 2}
    assert not worker.report(task, 7)


def test_tasks_with_two_keys_need_a_slot_of_both_and_customers_take_turns(flow: Flow) -> None:
    runs = [flow.start(of_both, name) for name in ("a", "b", "c")]
    assert slots(flow) == {"limit:api": 3, "limit:tenant:a": 2, "limit:tenant:b": 1}
    worker, order = flow.worker("w"), []
    while task := worker.claim_next():
        order.append(runs_name(flow, runs, task.workflow_id))
        worker.work_on(task)
    assert [run.result(timeout=0) for run in runs] == [[0, 1, 2, 3]] * 3
    assert "c" in order[:5], f"c waits too long: {order}"


def runs_name(flow: Flow, runs: list[Run[Any]], run_id: str) -> str:
    return "abc"[[run.id for run in runs].index(run_id)]


def test_a_held_run_takes_no_slots_and_waits_again_after_its_release(flow: Flow) -> None:
    one, other = flow.start(calls, "eva", 5), flow.start(calls, "eva", 5)
    one.hold()
    assert states(flow, one) == {"held": 5}
    assert states(flow, other) == {"pending": 2, "waiting": 3}
    one.release()
    assert states(flow, one) == {"waiting": 5}
    flow.settle()
    assert one.result(timeout=0) == other.result(timeout=0) == [0, 1, 2, 3, 4]


def test_a_cancelled_run_gives_its_slots_to_others(flow: Flow) -> None:
    one, other = flow.start(calls, "eva", 5), flow.start(calls, "eva", 5)
    assert states(flow, other) == {"waiting": 5}
    one.cancel()
    assert states(flow, one) == {"canceled": 5}
    assert states(flow, other) == {"pending": 2, "waiting": 3}


# --- rates ---


def test_a_rate_admits_so_many_in_any_period(flow: Flow) -> None:
    run = flow.start(mails)
    assert flow.settle() == 3
    flow.clock.advance(seconds=59.9)
    flow.watchdog()
    assert flow.settle() == 0
    flow.clock.advance(seconds=0.1)
    flow.watchdog()
    assert flow.settle() == 3
    flow.clock.advance(seconds=60)
    flow.watchdog()
    assert flow.settle() == 1
    assert run.result(timeout=0) == list(range(7))


def test_a_period_begins_when_the_task_does(flow: Flow) -> None:
    """Tasks that waited for a worker do not begin in one burst with those of the next period."""
    flow.start(mails)
    flow.clock.advance(seconds=300)  # no worker has claimed a task
    flow.watchdog()
    assert flow.settle() == 3
    flow.watchdog()
    assert flow.settle() == 0


def test_a_task_that_is_released_and_started_again_counts_in_its_new_period(flow: Flow) -> None:
    run, worker = flow.start(mails), flow.worker("w")
    task = worker.claim_next()
    assert task is not None
    assert flow.settle() == 2
    flow.engine.release(task)
    flow.clock.advance(seconds=60)
    flow.watchdog()
    assert flow.settle() == 3, "the released task, and two instead of three others"
    assert states(flow, run) == {"completed": 5, "waiting": 2}


def test_the_clock_of_a_test_moves_over_rates(flow: Flow) -> None:
    before = flow.clock.now
    assert flow.run(mails) == list(range(7))
    assert flow.clock.now - before == 120_000
    assert flow.run(slowly) == [0, 1, 2]


def test_a_retry_waits_for_its_time_and_then_for_a_slot(flow: Flow) -> None:
    run = flow.start(flakily, 1)
    assert flow.settle() == 1
    other = flow.start(flakily, 2)
    assert flow.settle() == 1, "a try that waits for its time takes no slot"
    flow.clock.advance(seconds=30)
    flow.watchdog()
    assert states(flow, run, other) == {"failed": 2, "pending": 1, "waiting": 1}
    flow.settle()
    assert (run.result(timeout=0), other.result(timeout=0)) == (1, 2)


# --- numbers ---


def limited(count: int) -> dict[str, Any]:
    options = {"limit": [{"key": "api", "count": count}]}
    call = {"type": "CallExpr", "target": "Call", "args": []}
    steps = [{"type": "StepStmt", "name": f"s{n}", "call": call} for n in range(6)]
    return {
        "type": "Program",
        "declarations": [
            {"type": "EventFacetDecl", "name": "Call", "options": options},
            {
                "type": "WorkflowDecl",
                "name": "W",
                "body": [{"type": "AndThenBlock", "steps": steps}],
            },
        ],
    }


def test_the_number_of_the_run_that_was_started_last_counts(
    flow: Flow, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "flowengine")
    old = flow.engine.start(limited(1), "W", {})
    assert states(flow, old) == {"pending": 1, "waiting": 5}
    flow.clock.advance(seconds=1)
    new = flow.engine.start(limited(3), "W", {})
    assert states(flow, old, new) == {"pending": 3, "waiting": 9}
    message = "limit:api is 3 from now on, and was 1: a run that was started later states it"
    assert message in caplog.text
    flow.clock.advance(seconds=1)
    flow.engine.start(limited(2), "W", {})
    assert "limit:api is 2 from now on, and was 3" in caplog.text
    assert states(flow, old, new)["pending"] == 3, "tasks that were admitted go on"


# --- errors of facets ---


@event_facet(retry=Retry(attempts=3))
def busy(seconds: float) -> str:
    if current_step().try_number == 1:
        raise RetryAfter(seconds, "busy")
    if current_step().try_number == 2:
        raise GiveUp("no such account")
    return "done"


@workflow
def ask(seconds: float) -> str:
    return busy(seconds)


def test_a_facet_says_when_it_is_tried_again_and_when_not(flow: Flow) -> None:
    run = flow.start(ask, 90)
    assert flow.settle() == 1
    flow.clock.advance(seconds=89.9)
    assert flow.settle() == 0
    flow.clock.advance(seconds=0.1)
    assert flow.settle() == 1
    with pytest.raises(RunFailed, match="no such account") as caught:
        run.result(timeout=0)
    assert "GiveUp" in str(caught.value)


def test_a_limited_task_that_was_held_goes_on_after_the_release(flow: Flow) -> None:
    run = flow.start(slowly)
    run.hold()
    run.release()
    assert states(flow, run) == {"pending": 1, "waiting": 2}, "its own slot does not keep it out"
    assert slots(flow) == {"limit:slow": 1, "rate:slow": 1}


def test_a_task_that_is_given_back_starts_again_within_the_rate(flow: Flow) -> None:
    """A worker that was killed may have claimed a task long before it is given back."""
    first = flow.start(slowly_once, 1)
    task = flow.worker("dead").claim_next()
    flow.clock.now += 1  # the second is behind it
    second = flow.start(slowly_once, 2)
    assert task is not None
    flow.clock.now += 10_000  # the period has passed, the task is still claimed
    assert flow.engine.release(task)
    assert states(flow, first) == {"pending": 1}, "it is admitted anew"
    flow.clock.now += 10_000
    flow.watchdog()
    assert flow.settle() == 1
    assert states(flow, first, second) == {"completed": 1, "waiting": 1}
    flow.clock.now += 9_999
    flow.watchdog()
    assert flow.settle() == 0, "the period begins with the last start"
    flow.clock.now += 1
    flow.watchdog()
    assert flow.settle() == 1


def test_a_task_that_starts_and_ends_between_two_statements_of_an_admission_has_used_its_rate(
    postgres: PostgresServer, with_schema: str
) -> None:
    url = postgres.new_database(with_schema)
    with Flow(store_url=url) as flow:
        run = flow.start(mails)
        assert states(flow, run) == {"pending": 3, "waiting": 4}
        ended = []

        def end_one(_connection: Any, _cursor: Any, sql: str, *_: Any) -> None:
            if not sql.startswith("UPDATE flowengine_slot SET until") or ended:
                return
            with psycopg.connect(url.replace("+psycopg", "")) as other:
                query = "UPDATE flowengine_task SET state = 'completed', started = %s WHERE uuid = "
                query += "(SELECT uuid FROM flowengine_task WHERE state = 'pending' LIMIT 1)"
                ended.append(other.execute(query, [flow.clock.now]).rowcount)

        event.listen(flow.database.engine, "after_cursor_execute", end_one)
        flow.engine.after_commit.admit({}, {"rate:mail"})
        assert ended == [1]
        assert states(flow, run) == {"pending": 2, "completed": 1, "waiting": 4}
        flow.clock.now += 60_000
        flow.engine.after_commit.admit({}, {"rate:mail"})
        assert states(flow, run) == {"pending": 3, "completed": 1, "waiting": 3}
    postgres.drop_database(url)


def test_a_start_counts_although_its_task_was_given_back(flow: Flow) -> None:
    """The worker may have begun before it was shut down: the service has got that call."""
    run = flow.start(slowly_once, 1)
    task = flow.worker("ending").claim_next()
    assert task is not None
    assert flow.engine.release(task)
    assert states(flow, run) == {"waiting": 1}
    flow.clock.now += 9_999
    flow.watchdog()
    assert states(flow, run) == {"waiting": 1}
    flow.clock.now += 1
    flow.watchdog()
    assert states(flow, run) == {"pending": 1}
    assert flow.settle() == 1
    assert run.result(timeout=0) == 1

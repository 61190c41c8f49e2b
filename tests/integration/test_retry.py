"""Retry of runs and steps, skip and complete by hand, on both databases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from sqlalchemy import select

from flowengine import attempt, event_facet, foreach, sleep, wait_for, workflow
from flowengine.engine import Run
from flowengine.engine.results import RunInfo
from flowengine.errors import (
    ActionRefused,
    InvalidInputs,
    RunFailed,
    UnknownRun,
    ValueRefused,
)
from flowengine.evaluator.states import RunState, TaskState
from flowengine.store.tables import HistoryRow, PayloadRow, StepRow
from flowengine.testing import Flow

executed: Counter[str] = Counter()
broken: set[str] = set()
items = [1, 2, 3]


def work(name: str) -> None:
    executed[name] += 1
    if name in broken:
        raise ValueError(f"{name} is broken")


@event_facet
def charge(customer: str) -> int:
    work("charge")
    return 100


@event_facet
def ship(amount: int) -> str:
    work("ship")
    return f"shipped for {amount}"


@event_facet
def mail(text: str) -> str:
    work("mail")
    return f"mail: {text}"


@event_facet
def count_stock() -> int:
    work("count_stock")
    return 7


@workflow
def order(customer: str) -> str:
    count_stock()
    return mail(ship(charge(customer)))


@event_facet
def listed() -> list[int]:
    work("listed")
    return list(items)


@event_facet
def half(number: int) -> int:
    work(f"half {number}")
    return number * 10


@event_facet
def other_half(number: int) -> int:
    work(f"other half {number}")
    return number + 1


@workflow
def both_halves(number: int) -> int:
    return other_half(half(number))


@workflow
def all_items() -> list[int]:
    return foreach(listed(), lambda number: both_halves(number))


@event_facet
def delegate(customer: str) -> str:
    work("delegate")
    return order.call(customer)


@workflow
def parent(customer: str) -> str:
    return mail(delegate(customer))


@event_facet
def detach(customer: str) -> str:
    return order.options(on_cancel="leave").call(customer)


@workflow
def detaching(customer: str) -> str:
    return detach(customer)


@workflow
def asks() -> str:
    answer = wait_for("approval", str)
    sleep(60.0).after(answer)
    return mail(answer)


@workflow
def greeting(customer: str, text: str) -> str:
    charged = charge(customer)
    return mail.after(charged)(text)


@workflow
def cleans_up(customer: str) -> str:
    return attempt(lambda: ship(charge(customer)), always=lambda: count_stock())


@workflow
def reports(customer: str) -> str:
    return attempt(lambda: ship(charge(customer)), failed=lambda error: count_stock())


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    executed.clear()
    broken.clear()
    items[:] = [1, 2, 3]
    with Flow(store_url=database_url) as flow:
        yield flow


def heal() -> None:
    broken.clear()
    executed.clear()


def test_retry_runs_the_failed_and_the_skipped_steps_again(flow: Flow) -> None:
    broken.add("ship")
    run = flow.start(order, "eva")
    flow.settle()
    with pytest.raises(RunFailed, match="ship is broken"):
        run.result(timeout=0)
    heal()
    run.retry(reason="the depot is open again", actor="eva")
    info = run.info()
    assert (info.state, info.error, info.finished) == (RunState.RUNNING, None, None)
    flow.settle()
    assert run.result(timeout=0) == "mail: shipped for 100"
    assert executed == {"ship": 1, "mail": 1}


def test_each_failure_of_a_run_is_reported_and_its_retry_can_succeed(flow: Flow) -> None:
    broken.add("ship")
    run = flow.start(reports, "eva")
    flow.settle()
    run.retry()
    flow.settle()
    with pytest.raises(RunFailed, match="ValueError: ship is broken"):
        run.result(timeout=0)
    assert executed == {"charge": 1, "ship": 2, "count_stock": 2}
    heal()
    run.retry()
    flow.settle()
    assert run.state == RunState.COMPLETED
    assert executed == {"ship": 1}


def test_a_run_that_fails_again_can_be_retried_again(flow: Flow) -> None:
    broken.update({"ship", "mail"})
    run = flow.start(order, "eva")
    flow.settle()
    for step in ("ship", "mail"):
        assert run.state == RunState.FAILED
        broken.discard(step)
        run.retry()
        flow.settle()
    assert run.state == RunState.COMPLETED
    assert executed == {"count_stock": 1, "charge": 1, "ship": 2, "mail": 2}


def test_retry_from_a_step_runs_it_and_its_dependents_once_each(flow: Flow) -> None:
    run = flow.start(order, "eva")
    flow.settle()
    assert run.result(timeout=0) == "mail: shipped for 100"
    executed.clear()
    run.retry(from_step="order.ship")
    flow.settle()
    assert run.result(timeout=0) == "mail: shipped for 100"
    assert executed == {"ship": 1, "mail": 1}


def test_a_worker_of_the_old_generation_reports_late_and_changes_nothing(flow: Flow) -> None:
    run = flow.start(order, "eva")
    slow = flow.worker("slow")
    old = slow.claim(run, "charge")
    run.retry(from_step="order.charge")
    assert not flow.engine.heartbeat(old)
    assert not slow.report(old, 999)
    fresh = flow.worker("fresh")
    new = fresh.claim(run, "charge")
    assert new.step_id != old.step_id
    assert fresh.report(new, 5)
    assert not slow.report(old, 999)
    flow.settle()
    assert run.result(timeout=0) == "mail: shipped for 5"
    assert executed == {"count_stock": 1, "ship": 1, "mail": 1}
    states = [task.state for task in flow.engine.tasks(run.id) if task.step_id == old.step_id]
    assert states == [TaskState.CANCELED]


def test_a_shorter_list_leaves_no_items_of_the_longer_one(flow: Flow) -> None:
    run = flow.start(all_items)
    flow.settle()
    assert run.result(timeout=0) == [11, 21, 31]
    executed.clear()
    items[:] = [5]
    run.retry(from_step="all_items.listed")
    flow.settle()
    assert run.result(timeout=0) == [51]
    assert executed == {"listed": 1, "half 5": 1, "other half 50": 1}


def test_the_failed_step_of_one_item_in_a_nested_facet_runs_alone(flow: Flow) -> None:
    broken.add("other half 20")
    run = flow.start(all_items)
    flow.settle()
    assert run.state == RunState.FAILED
    heal()
    run.retry()
    flow.settle()
    assert run.result(timeout=0) == [11, 21, 31]
    assert executed == {"other half 20": 1}


def test_a_wait_asks_again_and_its_timer_is_ended(flow: Flow) -> None:
    run = flow.start(asks)
    run.send("approval", "yes", actor="eva")
    flow.settle()
    run.retry(from_step="asks.wait_for")
    flow.clock.advance(seconds=61)
    flow.watchdog()
    assert run.state == RunState.RUNNING
    run.send("approval", "no")
    flow.settle()
    flow.clock.advance(seconds=61)
    flow.watchdog()
    flow.settle()
    assert run.result(timeout=0) == "mail: no"


def test_a_cancelled_run_is_retried(flow: Flow) -> None:
    run = flow.start(order, "eva")
    worker = flow.worker("a")
    assert worker.report(worker.claim(run, "charge"), 3)
    run.cancel()
    assert run.state == RunState.CANCELLED
    run.retry()
    flow.settle()
    assert run.result(timeout=0) == "mail: shipped for 3"
    assert executed == {"count_stock": 1, "ship": 1, "mail": 1}


def test_superseded_rows_are_kept_and_not_shown(flow: Flow) -> None:
    run = flow.start(order, "eva")
    flow.settle()
    shown = len(run.steps())
    run.retry(from_step="order.ship", reason="wrong address", actor="eva")
    flow.settle()
    assert len(run.steps()) == shown
    with flow.database.read() as session:
        rows = session.connection.execute(select(StepRow.__table__)).all()
        history = session.connection.execute(select(HistoryRow.__table__)).all()
    assert {row.generation for row in rows if row.superseded} == {0}
    assert any("wrong address" in row.summary and "person:eva" in row.summary for row in history)


# --- refusals ---


def test_a_completed_run_is_not_retried_without_a_step(flow: Flow) -> None:
    run = flow.start(order, "eva")
    flow.settle()
    before = run.info()
    with pytest.raises(ActionRefused, match="the run has completed, so no step is to be retried"):
        run.retry()
    assert run.info() == before


def test_a_running_run_is_not_retried_without_a_step(flow: Flow) -> None:
    with pytest.raises(ActionRefused, match="the run has not ended: retry it then"):
        flow.start(order, "eva").retry()


def test_an_unknown_step_is_refused_with_a_similar_name(flow: Flow) -> None:
    run = flow.start(order, "eva")
    flow.settle()
    with pytest.raises(ActionRefused, match=r"no step 'order\.shp'; did you mean 'order\.ship'"):
        run.retry(from_step="order.shp")
    assert run.state == RunState.COMPLETED


def test_an_unknown_run_is_refused(flow: Flow) -> None:
    with pytest.raises(UnknownRun):
        flow.engine.retry("0" * 32)


# --- by hand ---


def test_a_failed_step_is_completed_by_hand(flow: Flow) -> None:
    broken.add("charge")
    run = flow.start(order, "eva")
    flow.settle()
    heal()
    run.complete("order.charge", 42, reason="paid in cash", actor="eva")
    flow.settle()
    assert run.result(timeout=0) == "mail: shipped for 42"
    assert executed == {"ship": 1, "mail": 1}


def test_a_waiting_step_is_completed_by_hand_and_its_worker_refused(flow: Flow) -> None:
    run = flow.start(order, "eva")
    worker = flow.worker("slow")
    task = worker.claim(run, "charge")
    run.complete("order.charge", 42)
    assert not worker.report(task, 1)
    flow.settle()
    assert run.result(timeout=0) == "mail: shipped for 42"


def test_a_result_of_another_type_is_refused(flow: Flow) -> None:
    run = flow.start(order, "eva")
    with pytest.raises(ValueRefused, match=r"the answer for order\.charge does not fit"):
        run.complete("order.charge", "much")
    with pytest.raises(ActionRefused, match=r"no step 'order\.chrge'; did you mean"):
        run.complete("order.chrge", 1)


def test_the_run_goes_on_without_a_skipped_step(flow: Flow) -> None:
    broken.add("count_stock")
    run = flow.start(order, "eva")
    flow.settle()
    assert run.state == RunState.FAILED
    executed.clear()
    run.skip("order.count_stock", reason="nobody counts today", actor="eva")
    flow.settle()
    assert run.result(timeout=0) == "mail: shipped for 100"
    assert executed == {}
    (step,) = [step for step in run.steps() if step.path == "order.count_stock"]
    assert step.error is not None
    assert step.error["message"] == "skipped by person:eva: nobody counts today"


def test_a_result_that_needs_a_skipped_step_fails_the_run(flow: Flow) -> None:
    run = flow.start(order, "eva")
    run.skip("order.charge")
    flow.settle()
    assert run.state == RunState.FAILED


def test_the_same_action_twice_by_its_key_is_one(flow: Flow) -> None:
    run = flow.start(order, "eva")
    flow.settle()
    executed.clear()
    for _ in range(2):
        run.retry(from_step="order.mail", key="ticket 7")
        flow.settle()
    assert executed == {"mail": 1}


# --- child runs ---


def test_a_retried_step_keeps_what_its_failed_child_run_had_completed(flow: Flow) -> None:
    broken.add("ship")
    run = flow.start(parent, "eva")
    flow.settle()
    assert run.state == RunState.FAILED
    heal()
    run.retry()
    flow.settle()
    assert run.result(timeout=0) == "mail: mail: shipped for 100"
    # The child's mail and the parent's.
    assert executed == {"delegate": 1, "ship": 1, "mail": 2}
    old, new = sorted(flow.engine.list(workflow=order.name), key=lambda info: info.created)
    if old.forked_from is not None:
        old, new = new, old
    assert (old.state, new.state) == (RunState.FAILED, RunState.COMPLETED)
    assert (new.forked_from, new.parent) == (old.id, run.id)


def test_a_child_run_that_is_retried_by_itself_does_not_change_its_parent(flow: Flow) -> None:
    broken.add("ship")
    run = flow.start(parent, "eva")
    flow.settle()
    (child,) = flow.engine.list(workflow=order.name)
    heal()
    flow.engine.run(child.id).retry()
    flow.settle()
    assert flow.engine.get(child.id).state == RunState.COMPLETED
    assert run.state == RunState.FAILED
    assert executed == {"ship": 1, "mail": 1}


def children(flow: Flow, run: Run[str]) -> list[RunInfo]:
    return [info for info in flow.engine.list() if info.parent == run.id]


def test_a_retry_cancels_the_child_run_of_a_superseded_step(flow: Flow) -> None:
    run = flow.start(parent, "eva")
    worker = flow.worker("a")
    worker.work_on(worker.claim(run, "delegate"))
    (old,) = children(flow, run)
    run.retry(from_step="parent.delegate", reason="wrong customer", actor="eva")
    error = flow.engine.get(old.id).error
    assert error is not None
    assert (error["type"], error["actor"]) == ("Cancelled", "person:eva")
    reason = f"the step of run {run.id} that started it was retried: wrong customer"
    assert error["reason"] == reason
    flow.settle()
    assert run.result(timeout=0) == "mail: mail: shipped for 100"
    states = sorted(info.state for info in children(flow, run))
    assert states == [RunState.CANCELLED, RunState.COMPLETED]


def test_a_retry_leaves_a_child_run_alone_that_is_left_on_cancel(flow: Flow) -> None:
    run = flow.start(detaching, "eva")
    worker = flow.worker("a")
    worker.work_on(worker.claim(run, "detach"))
    run.retry(from_step="detaching.detach")
    flow.settle()
    assert [info.state for info in children(flow, run)] == [RunState.COMPLETED] * 2


def test_a_child_run_that_starts_while_its_step_is_retried_is_cancelled(flow: Flow) -> None:
    run = flow.start(parent, "eva")
    worker = flow.worker("slow")
    task = worker.claim(run, "delegate")
    run.retry(from_step="parent.delegate")
    worker.work_on(task)  # it starts its child run, and its report is refused
    (late,) = children(flow, run)
    assert late.state == RunState.CANCELLED
    flow.settle()
    assert run.result(timeout=0) == "mail: mail: shipped for 100"


@pytest.mark.parametrize("kind", ["complete", "skip"])
def test_a_step_ended_by_hand_cancels_its_child_run(flow: Flow, kind: str) -> None:
    run = flow.start(parent, "eva")
    worker = flow.worker("a")
    worker.work_on(worker.claim(run, "delegate"))
    if kind == "complete":
        run.complete("parent.delegate", "by hand", actor="eva")
    else:
        run.skip("parent.delegate", actor="eva")
    (child,) = children(flow, run)
    assert child.state == RunState.CANCELLED
    assert f"{kind} by hand" in (flow.engine.get(child.id).error or {})["message"]


# --- forks ---


def test_a_fork_keeps_earlier_results_and_leaves_its_origin_alone(flow: Flow) -> None:
    run = flow.start(order, "eva")
    flow.settle()
    before, steps = run.info(), run.steps()
    executed.clear()
    fork = run.fork(from_step="order.mail", reason="another text", actor="eva")
    assert fork.id != run.id
    flow.settle()
    assert fork.result(timeout=0) == "mail: shipped for 100"
    assert executed == {"mail": 1}
    assert (run.info(), run.steps()) == (before, steps)
    assert fork.info().forked_from == run.id
    assert [step.path for step in fork.steps()].count("order.mail") == 1
    with flow.database.read() as session:
        rows = session.connection.execute(select(StepRow.__table__)).all()
    assert not [row for row in rows if row.run_id == fork.id and row.superseded]


def test_a_fork_of_a_failed_run_retries_it_elsewhere(flow: Flow) -> None:
    broken.add("ship")
    run = flow.start(order, "eva")
    flow.settle()
    heal()
    fork = run.fork()
    flow.settle()
    assert fork.result(timeout=0) == "mail: shipped for 100"
    assert executed == {"ship": 1, "mail": 1}
    assert run.state == RunState.FAILED


def test_a_fork_of_a_running_run_runs_what_has_not_ended_itself(flow: Flow) -> None:
    run = flow.start(order, "eva")
    worker = flow.worker("a")
    assert worker.report(worker.claim(run, "charge"), 3)
    task = worker.claim(run, "ship")
    fork = run.fork()
    assert worker.report(task, "by the first run")
    flow.settle()
    assert run.result(timeout=0) == "mail: by the first run"
    assert fork.result(timeout=0) == "mail: shipped for 3"


def test_a_fork_with_other_inputs_runs_with_them(flow: Flow) -> None:
    run = flow.start(greeting, "eva", "hello")
    flow.settle()
    executed.clear()
    fork = run.fork(from_step="greeting.mail", inputs={"text": "good night"})
    flow.settle()
    assert fork.result(timeout=0) == "mail: good night"
    assert executed == {"mail": 1}
    again = run.fork(inputs={"text": "good day"})
    flow.settle()
    assert again.result(timeout=0) == "mail: good day"
    assert executed == {"mail": 2, "charge": 1}


def test_large_values_are_shared_by_a_fork(flow: Flow) -> None:
    run = flow.start(greeting, "eva", "x" * 100_000)
    flow.settle()

    def payloads() -> int:
        with flow.database.read() as session:
            return len(session.connection.execute(select(PayloadRow.__table__)).all())

    before = payloads()
    fork = run.fork(from_step="greeting.mail")
    flow.settle()
    assert fork.result(timeout=0) == run.result(timeout=0)
    assert payloads() == before


def test_a_fork_by_a_key_is_made_once(flow: Flow) -> None:
    run = flow.start(order, "eva")
    flow.settle()
    first = run.fork(from_step="order.mail", key="ticket 7")
    assert run.fork(from_step="order.mail", key="ticket 7").id == first.id


def test_bad_forks_are_refused(flow: Flow) -> None:
    run = flow.start(order, "eva")
    flow.settle()
    with pytest.raises(ActionRefused, match=r"fork of run .*the run has completed: name the step"):
        run.fork()
    with pytest.raises(ActionRefused, match=r"no step 'order\.mial'; did you mean 'order\.mail'"):
        run.fork(from_step="order.mial")
    with pytest.raises(InvalidInputs, match="custmer"):
        run.fork(inputs={"custmer": "x"})
    with pytest.raises(UnknownRun, match="no run"):
        flow.engine.fork("0" * 32)
    assert len(flow.engine.list()) == 1


# --- many runs ---


def test_failed_runs_are_retried_by_filter_after_a_dry_run(flow: Flow) -> None:
    broken.add("ship")
    failed = [flow.start(order, name) for name in ("eva", "ada")]
    cancelled, other = flow.start(order, "bob"), flow.start(parent, "eva")
    cancelled.cancel()
    flow.settle()
    heal()
    counted = flow.engine.retry_all(workflow="order", dry_run=True)
    assert (counted.matched, counted.applied) == (3, 0)  # with the child run of the other
    done = flow.engine.retry_all(workflow="order", reason="the depot is open", actor="eva")
    assert (done.matched, done.applied, done.refused) == (3, 3, 0)
    flow.settle()
    assert {run.state for run in failed} == {RunState.COMPLETED}
    assert executed == {"ship": 3, "mail": 3}
    assert (cancelled.state, other.state) == (RunState.CANCELLED, RunState.FAILED)
    assert flow.engine.retry_all(workflow="order").matched == 0
    assert flow.engine.retry_all(workflow="order", state="CANCELLED").applied == 1


def test_runs_without_the_step_of_a_bulk_retry_refuse_it(flow: Flow) -> None:
    orders, greetings = flow.start(order, "eva"), flow.start(greeting, "eva", "hello")
    flow.settle()
    heal()
    result = flow.engine.retry_all(from_step="order.ship", state="COMPLETED")
    assert (result.matched, result.applied, result.refused) == (2, 1, 1)
    assert "order.ship" in result.refusals[greetings.id]
    flow.settle()
    assert executed == {"ship": 1, "mail": 1}
    assert orders.state == RunState.COMPLETED

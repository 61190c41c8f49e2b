"""flowengine.testing.Flow: runs controlled by the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flowengine import Retry, RunFailed, current_step, event_facet, foreach, workflow
from flowengine.evaluator import StepState
from flowengine.testing import Flow
from flowengine.testing.flow import NothingToClaim


@event_facet(retry=Retry(attempts=3, first_wait=10, factor=2), timeout=60)
def charge(cents: int) -> str:
    if current_step().try_number < 3:
        raise ConnectionError("no answer")
    return f"paid {cents}"


@event_facet
def greet(name: str) -> str:
    return f"hello {name}"


@workflow
def pay(cents: int) -> str:
    return charge(cents)


@workflow
def greet_all(names: list[str]) -> list[str]:
    return foreach(names, lambda name: greet(name))


@event_facet(max_losses=1)
def fragile(n: int) -> int:
    return n


@workflow
def risky(n: int) -> int:
    return fragile(n)


@pytest.fixture
def flow() -> Iterator[Flow]:
    with Flow() as flow:
        yield flow


def test_a_workflow_runs_to_its_end_inline(flow: Flow) -> None:
    assert flow.run(greet_all, ["ada", "bob"]) == ["hello ada", "hello bob"]


def test_start_of_a_workflow_uses_the_flow(flow: Flow) -> None:
    run = greet_all.start(["ada"])
    assert flow.settle() == 1
    assert run.result(timeout=0) == ["hello ada"]


def test_tries_wait_as_long_as_the_retry_policy(flow: Flow) -> None:
    run = flow.start(pay, 300)
    assert flow.settle() == 1
    flow.clock.advance(seconds=9.9)
    assert flow.settle() == 0, "the second try is due after 10 s"
    flow.clock.advance(seconds=0.1)
    assert flow.settle() == 1
    flow.clock.advance(seconds=19.9)
    assert flow.settle() == 0, "the third try is due after 20 s more"
    flow.clock.advance(seconds=0.1)
    assert flow.settle() == 1
    assert run.result(timeout=0) == "paid 300"


def test_run_advances_the_clock_to_the_next_due_task(flow: Flow) -> None:
    before = flow.clock.now
    assert flow.run(pay, 300) == "paid 300"
    assert flow.clock.now - before == 30_000


def test_the_step_of_a_dead_worker_runs_again_and_its_late_report_is_refused(flow: Flow) -> None:
    run = flow.start(greet_all, ["ada"])
    dead = flow.worker("w1")
    task = dead.claim(run, "greet")
    dead.die()
    flow.watchdog()
    assert flow.paths(run)["greet_all.foreach[0].greet"] == StepState.EVENT_TRANSMIT
    again = flow.worker("w2").claim(run, "greet")
    assert again.losses == 1
    assert not dead.report(task, "from the dead"), "the lease is lost"
    assert flow.worker("w2").work_on(again)
    assert run.result(timeout=0) == ["hello ada"]


def test_a_step_fails_after_more_losses_than_allowed(flow: Flow) -> None:
    run = flow.start(risky, 1)
    for name in ("w1", "w2"):
        flow.worker(name).claim(run, "fragile")
        flow.worker(name).die()
        flow.watchdog()
    with pytest.raises(RunFailed, match="its worker died 2 times, 1 losses are allowed"):
        run.result(timeout=0)


def test_a_step_without_activity_times_out_and_a_heartbeat_prevents_it(flow: Flow) -> None:
    run = flow.start(pay, 1)
    task = flow.worker("w1").claim(run, "charge")
    flow.clock.advance(seconds=59)
    flow.watchdog()
    assert flow.engine.heartbeat(task), "still held"
    flow.clock.advance(seconds=59)
    flow.watchdog()
    assert flow.engine.heartbeat(task), "the heartbeat has started the time anew"
    flow.clock.advance(seconds=61)
    flow.watchdog()
    assert not flow.engine.heartbeat(task), "taken away"
    assert not flow.worker("w1").report(task, "late")
    (first, second) = flow.engine.tasks(run.id)
    assert first.error == {
        "type": "Timeout",
        "message": "no activity for more than its timeout of 60 s",
    }
    assert second.try_number == 2


def test_claiming_a_step_that_is_not_pending_raises_with_the_pending_steps(flow: Flow) -> None:
    run = flow.start(pay, 1)
    with pytest.raises(NothingToClaim, match=r"no task of 'refund'.*pay\.charge"):
        flow.worker("w1").claim(run, "refund")


def test_current_step_outside_a_step_raises() -> None:
    with pytest.raises(Exception, match="inside an event facet"):
        current_step()

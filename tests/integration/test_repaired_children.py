"""A child run that failed and was repaired by itself, and the retry of the step that started it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

import pytest

from flowengine import event_facet, workflow
from flowengine.engine import Run
from flowengine.engine.results import RunInfo
from flowengine.evaluator.states import RunState
from flowengine.testing import Flow

executed: Counter[str] = Counter()
broken: set[str] = set()
asked: list[int] = []


def work(name: str) -> None:
    executed[name] += 1
    if name in broken:
        raise ValueError(f"{name} is broken")


@event_facet(name="repaired.charge")
def charge(n: int) -> str:
    work("charge")
    return f"{n} charged" + " and noted" * (10_000 if n == 7 else 0)


@event_facet(name="repaired.fragile")
def fragile(text: str) -> str:
    work("fragile")
    return f"{text}, sent"


@workflow(name="repaired.kid")
def kid(n: int) -> str:
    return fragile(charge(n))


@event_facet(name="repaired.via")
def via(n: int) -> str:
    work("via")
    return kid.call(asked[0] if asked else n)


@event_facet(name="repaired.fragile2")
def fragile2(text: str) -> str:
    work("fragile2")
    return f"{text}, filed"


@workflow(name="repaired.par")
def par(n: int) -> str:
    return fragile2(via(n))


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    executed.clear()
    broken.clear()
    asked.clear()
    with Flow(store_url=database_url) as flow:
        yield flow
        assert flow.engine.doctor(older_than=timedelta(seconds=-1)) == []


def children(flow: Flow, run: Run[str]) -> list[RunInfo]:
    return [info for info in flow.engine.list() if info.parent == run.id]


def failed(flow: Flow, n: int = 1) -> tuple[Run[str], Run[str]]:
    """Return a run that has failed, and its child run, whose failure is repaired."""
    broken.add("fragile")
    run = flow.start(par, n)
    flow.settle()
    assert run.state == RunState.FAILED
    broken.clear()
    (child,) = children(flow, run)
    return run, flow.engine.run(child.id)


@pytest.mark.parametrize("n", [1, 7])  # the result of 7 is large
def test_a_retried_step_takes_the_result_of_its_child_run_that_was_retried(
    flow: Flow, n: int
) -> None:
    run, child = failed(flow, n)
    child.retry()
    flow.settle()
    assert (child.state, run.state) == (RunState.COMPLETED, RunState.FAILED)
    run.retry()
    flow.settle()
    assert run.result(timeout=0) == f"{child.result(timeout=0)}, filed"
    assert executed == {"charge": 1, "fragile": 2, "via": 2, "fragile2": 1}
    assert [info.id for info in children(flow, run)] == [child.id]


def test_a_retried_step_takes_the_result_of_a_child_run_completed_by_hand(flow: Flow) -> None:
    run, child = failed(flow)
    child.complete("kid.fragile", "by hand")
    assert child.state == RunState.COMPLETED
    run.retry()
    flow.settle()
    assert run.result(timeout=0) == "by hand, filed"
    assert executed == {"charge": 1, "fragile": 1, "via": 2, "fragile2": 1}


def test_a_retried_step_waits_for_its_child_run_that_goes_on(flow: Flow) -> None:
    run, child = failed(flow)
    child.retry()
    worker = flow.worker("slow")
    task = worker.claim(child, "fragile")
    run.retry()
    flow.settle()
    assert (child.state, run.state) == (RunState.RUNNING, RunState.RUNNING)
    (step,) = [step for step in run.steps() if step.path == "par.via"]
    assert step.child_run == child.id
    assert worker.report(task, "late")
    flow.settle()
    assert run.result(timeout=0) == "late, filed"
    assert executed == {"charge": 1, "fragile": 1, "via": 2, "fragile2": 1}
    assert [info.id for info in children(flow, run)] == [child.id]


def test_a_run_in_the_cache_of_another_process_reports_to_the_retried_step(
    flow: Flow, database_url: str
) -> None:
    run, child = failed(flow)
    child.retry()  # from here on the engine of this process has it in its cache
    with Flow(store_url=database_url) as other:
        other.clock.now = flow.clock.now
        other.engine.run(run.id).retry()
        worker = other.worker("other")
        worker.work_on(worker.claim(other.engine.run(run.id), "via"))
    flow.settle()
    assert run.result(timeout=0) == "1 charged, sent, filed"
    assert executed["charge"] == 1


def test_the_step_fails_if_its_child_run_fails_again_and_the_next_retry_forks_it(
    flow: Flow,
) -> None:
    run, child = failed(flow)
    broken.add("fragile")
    child.retry()
    worker = flow.worker("slow")
    task = worker.claim(child, "fragile")
    run.retry()
    via_task = worker.claim(run, "via")
    worker.work_on(via_task)
    worker.work_on(task)
    flow.settle()
    assert (child.state, run.state) == (RunState.FAILED, RunState.FAILED)
    broken.clear()
    run.retry()
    flow.settle()
    assert run.result(timeout=0) == "1 charged, sent, filed"
    assert executed["charge"] == 1
    (fork,) = [info for info in children(flow, run) if info.id != child.id]
    assert fork.forked_from == child.id


def test_a_child_run_that_failed_again_before_the_retry_is_forked(flow: Flow) -> None:
    run, child = failed(flow)
    broken.add("fragile")
    child.retry()
    flow.settle()
    broken.clear()
    run.retry()
    flow.settle()
    assert run.result(timeout=0) == "1 charged, sent, filed"
    assert executed["charge"] == 1
    assert sorted(info.forked_from or "" for info in children(flow, run)) == ["", child.id]


def test_a_completed_child_run_with_other_inputs_is_not_taken(flow: Flow) -> None:
    run, child = failed(flow)
    child.retry()
    flow.settle()
    asked.append(2)
    run.retry()
    flow.settle()
    assert run.result(timeout=0) == "2 charged, sent, filed"
    assert executed["charge"] == 2
    assert [info.forked_from for info in children(flow, run)] == [None, None]


def test_a_step_that_has_taken_the_result_starts_another_run_when_it_is_retried(
    flow: Flow,
) -> None:
    run, child = failed(flow)
    child.retry()
    flow.settle()
    run.retry()
    flow.settle()
    run.retry(from_step="par.via")
    flow.settle()
    assert run.state == RunState.COMPLETED
    assert executed["charge"] == 2
    assert len(children(flow, run)) == 2


@pytest.mark.parametrize("is_open", [False, True])
def test_a_try_killed_after_it_took_the_child_run_takes_it_once(flow: Flow, is_open: bool) -> None:
    run, child = failed(flow)
    child.retry()
    held = flow.worker("slow").claim(child, "fragile") if is_open else None
    flow.settle()
    run.retry()
    worker = flow.worker("killed")
    task = worker.claim(run, "via")
    for _ in range(2):
        taken = flow.engine.start_child(task, kid.program(), kid.name, {"n": 1}, waits=True)
        assert taken == child.id
    worker.die()
    flow.watchdog()
    flow.settle()
    if held is not None:
        assert run.state == RunState.RUNNING
        flow.worker("slow").work_on(held)
        flow.settle()
    assert run.result(timeout=0) == "1 charged, sent, filed"
    assert executed["charge"] == 1
    assert [info.id for info in children(flow, run)] == [child.id]


def test_a_late_try_of_a_superseded_step_does_not_take_the_child_run(flow: Flow) -> None:
    run, child = failed(flow)
    child.retry()
    flow.settle()
    run.retry()
    worker = flow.worker("late")
    task = worker.claim(run, "via")
    run.retry(from_step="par.via")
    worker.work_on(task)
    flow.settle()
    assert run.result(timeout=0) == "1 charged, sent, filed"
    assert executed["charge"] == 1

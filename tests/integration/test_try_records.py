"""Every try is kept: its error, its worker, its times, and why it waited."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from flowengine import Breaker, Limit, Rate, Retry, RunFailed, current_step, event_facet, workflow
from flowengine.engine import Engine, Run
from flowengine.engine.results import StepInfo
from flowengine.engine.try_records import Waited
from flowengine.testing import Flow
from flowengine.worker import progress

seen: list[Any] = []


@event_facet(retry=Retry(attempts=2, first_wait=20), limit=Limit("account", 1))
def pay(n: int) -> int:
    if current_step().try_number == 1:
        raise ConnectionError("no answer")
    return n


@event_facet(limit=Limit("line", 1), rate=Rate("line", 1, per=10))
def dial(n: int) -> int:
    return n


@event_facet(breaker=Breaker("bank", failure_threshold=1, timeout_seconds=60))
def ask(fails: bool) -> int:
    if fails:
        raise ConnectionError("closed")
    return 1


@event_facet
def count(to: int) -> int:
    step = current_step()
    for n in range(to):
        assert step.heartbeat(progress={"done": n})
        seen.append(shown(step.run_id))
    return to


@event_facet
async def acount(to: int) -> int:
    step = current_step()
    assert await step.aheartbeat(progress=0.25)
    seen.append(await asyncio.to_thread(shown, step.run_id))
    return to


@event_facet
def boast() -> None:
    current_step().heartbeat(progress="x" * 10_000)


@workflow
def paid(n: int) -> int:
    return pay(n)


@workflow
def dialed(n: int) -> int:
    return dial(n)


@workflow
def asked(fails: bool) -> int:
    return ask(fails)


@workflow
def counted(to: int) -> int:
    return count(to)


@workflow
def acounted(to: int) -> int:
    return acount(to)


@workflow
def boasted() -> None:
    boast()


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    with Flow(store_url=database_url) as flow:
        engines.append(flow.engine)
        yield flow
        engines.pop()


engines: list[Engine] = []


def step_of(engine: Engine, run_id: str) -> StepInfo:
    (step,) = [step for step in engine.steps(run_id) if step.tries]
    return step


def shown(run_id: str) -> Any:
    return step_of(engines[-1], run_id).progress


def waits(flow: Flow, run: Run[Any]) -> list[Waited]:
    return [one.waited for one in step_of(flow.engine, run.id).all_tries]


def test_a_try_is_kept_with_its_error_its_worker_and_its_times(flow: Flow) -> None:
    run = flow.start(paid, 7)
    flow.clock.advance(seconds=3)
    flow.settle()
    flow.run(paid, 8)
    flow.clock.advance(seconds=30)
    flow.watchdog()
    flow.settle()
    first, second = step_of(flow.engine, run.id).all_tries
    assert (first.number, first.state, first.outcome) == (1, "failed", "failed")
    assert first.error is not None
    assert first.error["type"] == "ConnectionError"
    assert "raise ConnectionError" in first.error["traceback"]
    assert first.server is not None
    assert first.started == first.created + 3_000
    assert first.waited == Waited(queue=3_000)
    assert (second.number, second.outcome, second.error) == (2, "succeeded", None)
    assert second.waited.backoff == 20_000
    assert second.started is not None
    assert second.started - second.created == sum(vars_of(second.waited))


def vars_of(waited: Waited) -> list[int]:
    return [getattr(waited, name) for name in Waited.__slots__]


def test_the_waits_for_a_limit_a_rate_and_a_worker_are_apart(flow: Flow) -> None:
    worker = flow.worker("w")
    first, second = flow.start(dialed, 1), flow.start(dialed, 2)
    task = worker.claim_next()
    assert task is not None
    flow.clock.advance(seconds=4)
    step = step_of(flow.engine, second.id)
    assert (step.task_state, step.blocked_on) == ("waiting", "limit:line")
    assert step.waited == Waited(limit=4_000)
    worker.work_on(task)
    assert step_of(flow.engine, second.id).blocked_on == "rate:line"
    flow.clock.advance(seconds=6)
    flow.watchdog()
    flow.clock.advance(seconds=2)
    flow.settle()
    assert waits(flow, first) == [Waited()]
    assert waits(flow, second) == [Waited(limit=4_000, rate=6_000, queue=2_000)]


def test_the_waits_for_a_circuit_and_a_held_run_are_apart(flow: Flow) -> None:
    with pytest.raises(RunFailed):
        flow.run(asked, True)
    run = flow.start(asked, False)
    assert flow.settle() == 1  # it is parked: the breaker is open
    flow.clock.advance(seconds=20)
    assert waits(flow, run) == [Waited(circuit=20_000)]
    flow.clock.advance(seconds=40)
    run.hold()
    flow.clock.advance(seconds=5)
    assert waits(flow, run) == [Waited(circuit=60_000, hold=5_000)]
    run.release()
    flow.clock.advance(seconds=1)
    flow.settle()
    assert run.result(timeout=0) == 1
    assert waits(flow, run) == [Waited(circuit=60_000, hold=5_000, queue=1_000)]


# --- progress ---


def test_the_first_progress_is_visible_at_once_and_the_last_in_the_end(flow: Flow) -> None:
    seen.clear()
    run = flow.start(counted, 50)
    flow.settle()
    assert seen[0] == {"done": 0}
    assert step_of(flow.engine, run.id).progress == {"done": 49}
    assert run.result(timeout=0) == 50


def test_a_coroutine_reports_its_progress(flow: Flow) -> None:
    seen.clear()
    assert flow.run(acounted, 3) == 3
    assert seen == [0.25]


def test_a_large_progress_is_refused(flow: Flow) -> None:
    with pytest.raises(RunFailed, match="the progress of a heartbeat"):
        flow.run(boasted)


def test_frequent_reports_are_written_ten_times_a_second_and_the_last_one_always() -> None:
    sent: list[str] = []

    def send(text: str) -> bool:
        sent.append(text)
        return True

    reports = progress.ProgressReports(send)
    for n in range(1000):
        assert reports.report(str(n))
    reports.flush()
    assert sent[0] == "0"
    assert sent[-1] == "999"
    reports.flush()
    assert sent.count("999") == 1


def test_a_lost_lease_is_reported_to_the_code() -> None:
    reports = progress.ProgressReports(lambda _: False)
    assert not reports.report("1")
    assert not reports.report("2")

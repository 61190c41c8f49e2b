"""The rows of durable functions: sound for the doctor, exported, retried, forked and purged."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from flowengine import event_facet, gather, workflow
from flowengine.engine.doctor import Doctor
from flowengine.errors import RunFailed, ValueRefused
from flowengine.testing.replay import replay
from tests.integration.functions import bodies
from tests.integration.functions.workers import IN_PLACE, WITH_TASKS, Worked, worked

broken: list[int] = []


@event_facet
def fragile(n: int) -> int:
    bodies.made.append(n)
    if n in broken:
        raise bodies.Refused(f"broken {n}")
    return n


@workflow
async def fragile_chain(count: int) -> list[int]:
    return [await fragile(n) for n in range(count)]


@pytest.fixture(params=[WITH_TASKS, IN_PLACE], ids=["tasks", "in-place"])
def work(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> Iterator[Worked]:
    broken.clear()
    with worked(database_url, tmp_path, **request.param) as work:
        work.run(fragile_chain, 4)
        bodies.made.clear()
        yield work


def test_the_doctor_finds_nothing_to_repair(work: Worked) -> None:
    for flow, given in ((bodies.asks, "name"), (bodies.naps, 60.0), (bodies.survey, [1, 2])):
        work.start(flow, given)
    work.settle()
    work.clock.now += 1_000
    assert Doctor(work.engine).check(older_than=timedelta(0)) == []


def test_a_retry_keeps_the_calls_before_the_failed_one(work: Worked) -> None:
    broken.append(2)
    run = work.start(fragile_chain, 4)
    work.settle()
    with pytest.raises(RunFailed, match="broken 2"):
        run.result(timeout=0)
    broken.clear()
    run.retry()
    work.settle()
    assert run.result(timeout=0) == [0, 1, 2, 3]
    assert bodies.made == [0, 1, 2, 2, 3]


def test_a_run_is_retried_from_a_call(work: Worked) -> None:
    run = work.start(fragile_chain, 4)
    work.settle()
    run.retry(from_step="fragile_chain.fragile_chain.fragile#1")
    work.settle()
    assert run.result(timeout=0) == [0, 1, 2, 3]
    assert bodies.made == [0, 1, 2, 3, 1, 2, 3]


def test_a_fork_takes_over_the_calls(work: Worked) -> None:
    broken.append(3)
    run = work.start(fragile_chain, 4)
    work.settle()
    broken.clear()
    fork = run.fork()
    work.settle()
    assert fork.result(timeout=0) == [0, 1, 2, 3]
    assert bodies.made == [0, 1, 2, 3, 3]
    assert run.state == "FAILED"


def test_an_exported_run_is_evaluated_again_with_the_same_decisions(
    database_url: str, tmp_path: Path
) -> None:
    with worked(database_url, tmp_path, **WITH_TASKS, continuation=False) as work:
        for flow, given in ((bodies.chain, 4), (bodies.caught, 3), (bodies.races, 3)):
            run = work.start(flow, given)
            work.settle()
            assert run.info().is_final
            replay(work.engine.export(run.id)).check()


@event_facet(task_list="elsewhere")
def distant(n: int) -> int:
    return n


@workflow
def distant_graph(n: int) -> int:
    return distant(n)


@workflow
async def distant_sum(n: int) -> int:
    return sum(await gather(distant(n), distant_graph(n)))


def test_a_call_gets_its_result_from_outside(database_url: str, tmp_path: Path) -> None:
    with worked(database_url, tmp_path, **WITH_TASKS, continuation=False) as work:
        run = work.start(distant_sum, 1)
        work.settle()
        with pytest.raises(ValueRefused, match="its only result has the name 'result'"):
            run.complete("distant_sum.distant_sum.distant#0", {"other": 1})
        run.complete("distant_sum.distant_sum.distant#0", 40)
        run.complete("distant_sum.distant_sum.distant_graph#1", {"result": 2})
        work.settle()
        assert run.result(timeout=0) == 42


@pytest.mark.parametrize("passed", [1, 0], ids=["clock moves", "clock stands still"])
def test_the_feed_of_events_has_each_call_and_one_end_of_the_function(
    database_url: str, tmp_path: Path, passed: int
) -> None:
    with worked(database_url, tmp_path, **WITH_TASKS, continuation=False) as work:
        run = work.start(fragile_chain, 2)
        while work.worker.drain("default"):
            work.clock.now += passed
        changes = list(work.engine.events(run.id, after=0))
    found = [
        (change.path.rpartition(".")[2], change.state.rpartition(".")[2]) for change in changes
    ]
    ended = ["Created", "Dispatched", "Processing", "Completed"]
    assert [state for path, state in found if path == "fragile#0"] == ended
    assert [state for path, state in found if path == "fragile#1"] == ended
    states = [state for path, state in found if path == "fragile_chain"]
    again = ["Dispatched", "Processing"]
    assert states == ["Created", *again, *again, *again, "Completed"]

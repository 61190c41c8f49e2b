"""Runs that somebody acted on are evaluated again from their exports, with these actions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flowengine import Retry, attempt, event_facet, foreach, sleep, wait_for, workflow
from flowengine.engine import Run
from flowengine.errors import ActionRefused, NotReplayable
from flowengine.testing import Flow, replay
from tests.integration.test_export import finished
from tests.integration.test_versions import FIRST, SECOND, answer

FAILS: list[str] = []
CLOSED: list[bool] = []  #: whether the gate is closed


@event_facet(name="replay.call", retry=Retry(attempts=3, first_wait=4))
def call(n: int) -> int:
    if FAILS:
        raise ConnectionError(FAILS.pop())
    return n + 1


@event_facet(name="replay.gate")
def gate(n: int) -> int:
    if CLOSED:
        raise ValueError("closed")
    return n * 10


@workflow(name="replay.talks")
def talks(n: int) -> int:
    called = call(n)
    slept = sleep(called)
    answer = wait_for("size", int, timeout=3600)
    return call.after(slept)(answer)


@workflow(name="replay.fan")
def fan(ns: list[int]) -> list[int]:
    return foreach(ns, lambda n: call(call(n)))


@workflow(name="replay.passes")
def passes(n: int) -> int:
    return call(gate(call(n)))


@workflow(name="replay.passes_all")
def passes_all(ns: list[int]) -> list[int]:
    return foreach(ns, lambda n: passes(n))


@workflow(name="replay.tidy")
def tidy(n: int) -> int:
    return attempt(lambda: gate(call(n)), always=lambda: call(n))


@event_facet(name="replay.delegate")
def delegate(n: int) -> int:
    return passes.call(n)


@workflow(name="replay.family")
def family(n: int) -> int:
    return call(delegate(n))


@workflow(name="replay.aside")
def aside(n: int) -> int:
    gate(n)
    return call(n)


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    FAILS.clear()
    CLOSED.clear()
    with Flow(store_url=database_url) as flow:
        yield flow


def cancelled(flow: Flow) -> Run[Any]:
    run = flow.start(talks, 1)
    flow.settle()
    run.cancel(reason="not needed", actor="eva")
    return run


def cancelled_in_pages(flow: Flow) -> Run[Any]:
    run = flow.start(fan, list(range(620)))
    assert run.info().open_steps > 500
    run.cancel()
    return run


def cancelled_with_cleanup(flow: Flow) -> Run[Any]:
    run = flow.start(tidy, 1)
    worker = flow.worker("a")
    worker.work_on(worker.claim(run, "call"))
    run.cancel()
    assert run.state == "CANCELLING"
    return run


def cancelled_then_retried(flow: Flow) -> Run[Any]:
    run = flow.start(passes, 1)
    worker = flow.worker("a")
    worker.work_on(worker.claim(run, "call"))
    run.cancel()
    run.retry()
    flow.settle()
    run.retry(from_step="passes.gate")
    run.cancel()
    run.retry()
    return run


def in_the_queue(flow: Flow) -> tuple[Run[Any], Run[Any]]:
    first = passes.options(singleton="one").start(1)
    run = passes.options(singleton="one", if_running="queue").start(1)
    return flow.engine.run(first.id), flow.engine.run(run.id)


def cancelled_in_the_queue(flow: Flow) -> Run[Any]:
    _, run = in_the_queue(flow)
    assert run.state == "QUEUED"
    run.cancel()
    return run


def queued(flow: Flow) -> Run[Any]:
    first, run = in_the_queue(flow)
    first.cancel()
    return run


def held(flow: Flow) -> Run[Any]:
    run = flow.start(passes, 1)
    run.hold(reason="wait", actor="eva")
    flow.settle()
    run.release()
    return run


def failed(flow: Flow, started: Run[Any]) -> Run[Any]:
    CLOSED.append(True)
    flow.settle()
    assert started.state == "FAILED"
    CLOSED.clear()
    return started


def retried(flow: Flow) -> Run[Any]:
    run = failed(flow, flow.start(passes, 1))
    run.retry(reason="the gate is open", actor="eva")
    return run


def retried_items(flow: Flow) -> Run[Any]:
    run = failed(flow, flow.start(passes_all, [1, 2, 3]))
    run.retry()
    return run


def retried_from_a_step(flow: Flow) -> Run[Any]:
    run = flow.start(passes, 1)
    flow.settle()
    run.retry(from_step="passes.gate")
    flow.settle()
    FAILS.append("refused")
    run.retry(from_step="passes.gate")
    return run


def retried_while_it_runs(flow: Flow) -> Run[Any]:
    run = flow.start(passes, 1)
    worker = flow.worker("a")
    worker.work_on(worker.claim(run, "call"))
    late = worker.claim(run, "gate")
    run.retry(from_step="passes.call")
    worker.report(late, 7)
    return run


def asked_again(flow: Flow) -> Run[Any]:
    run = flow.start(talks, 1)
    run.send("size", 5, actor="eva")
    finished(flow, run)
    run.retry(from_step="talks.wait_for")
    flow.settle()
    run.send("size", 7, actor="bob")
    return run


def completed_by_hand(flow: Flow) -> Run[Any]:
    run = failed(flow, flow.start(passes, 1))
    run.complete("passes.gate", 70, actor="eva")
    return run


def completed_while_it_waits(flow: Flow) -> Run[Any]:
    run = flow.start(passes, 1)
    run.complete("passes.call", 70)
    return run


def skipped(flow: Flow) -> Run[Any]:
    run = failed(flow, flow.start(aside, 1))
    run.skip("aside.gate", reason="not needed", actor="eva")
    return run


def refused(flow: Flow) -> Run[Any]:
    run = flow.start(passes, 1)
    with pytest.raises(ActionRefused):
        run.retry()
    return run


def retried_parent(flow: Flow) -> Run[Any]:
    run = failed(flow, flow.start(family, 1))
    run.retry()
    return run


def cancelled_parent(flow: Flow) -> Run[Any]:
    run = flow.start(family, 1)
    worker = flow.worker("a")
    worker.work_on(worker.claim(run, "delegate"))
    run.cancel()
    return run


ACTED: list[Callable[[Flow], Run[Any]]] = [
    *(cancelled, cancelled_in_pages, cancelled_with_cleanup, cancelled_then_retried),
    *(cancelled_in_the_queue, queued, held, retried, retried_items, retried_from_a_step),
    *(retried_while_it_runs, asked_again, completed_by_hand, completed_while_it_waits, skipped),
    *(refused, retried_parent, cancelled_parent),
]


@pytest.mark.parametrize("acted", ACTED, ids=lambda acted: acted.__name__)
def test_actions_are_inputs_of_the_replay(flow: Flow, acted: Callable[[Flow], Run[Any]]) -> None:
    run = acted(flow)
    finished(flow, run)
    again = replay(json.loads(json.dumps(flow.engine.export(run.id)))).check()
    info = run.info()
    assert (again.state, again.commits) == (info.state, info.revision)
    assert again.outputs == info.outputs


def test_a_child_run_that_its_parent_has_cancelled_is_replayed(flow: Flow) -> None:
    run = cancelled_parent(flow)
    finished(flow, run)
    (child_run,) = flow.engine.list(parent=run.id)
    assert replay(flow.engine.export(child_run.id)).check().state == "CANCELLED"


def test_a_fork_is_not_replayed_and_its_source_is(flow: Flow) -> None:
    source = flow.start(passes, 1)
    flow.settle()
    fork = source.fork(from_step="passes.gate")
    flow.settle()
    with pytest.raises(NotReplayable, match=f"export and replay run {source.id}") as raised:
        replay(flow.engine.export(fork.id))
    assert (raised.value.run_id, raised.value.revision) == (fork.id, 1)
    replay(flow.engine.export(source.id)).check()


def test_a_run_that_was_moved_to_another_program_is_not_replayed(flow: Flow) -> None:
    run = flow.engine.start(FIRST, "W", {"n": 1})
    answer(flow, run, fails="W.b")
    replay(flow.engine.export(run.id)).check()
    moved = run.info().revision + 1
    run.retry(program=SECOND)
    with pytest.raises(NotReplayable, match="with another program") as raised:
        replay(flow.engine.export(run.id))
    assert (raised.value.run_id, raised.value.revision) == (run.id, moved)


def test_an_export_without_an_input_names_run_and_revision(flow: Flow) -> None:
    run = retried(flow)
    finished(flow, run)
    document = flow.engine.export(run.id)
    document["rows"]["flowengine_fact"]["rows"] = []
    with pytest.raises(NotReplayable, match="lacks the options of the action 'retry'") as raised:
        replay(document)
    assert raised.value.run_id == run.id
    assert f"run {run.id} cannot be replayed at revision" in str(raised.value)

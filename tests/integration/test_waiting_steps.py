"""Readers see for what a step waits, how earlier tries failed, and how long it waited and ran."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest
from rich.console import Console

from flowengine import Retry, event_facet, sleep, workflow
from flowengine.cli.run_view import run_tree
from flowengine.engine import Run, RunInfo, StepInfo, queries
from flowengine.engine.presentation import elapsed, outstanding
from flowengine.engine.results import RunSummary
from flowengine.engine.run_tree import StepLine, load_run_tree
from flowengine.testing import Flow
from flowengine.web import styles

FAILS: list[str] = []  #: the messages of the next tries that fail


@event_facet(name="waits.call", retry=Retry(attempts=5, first_wait=4, factor=2))
def call(n: int) -> int:
    if FAILS:
        raise ConnectionError(FAILS.pop(0))
    return n


@event_facet(name="waits.add")
def add(a: int, b: int) -> int:
    return a + b


@workflow(name="waits.calling")
def calling(n: int) -> int:
    return add(call(n), n)


@workflow(name="waits.both")
def both(n: int) -> int:
    return add(call.named("first")(n), call.named("second")(n))


@workflow(name="waits.parent")
def parent(n: int) -> int:
    return calling.start(n).result()


@workflow(name="waits.delayed")
def delayed(n: int) -> int:
    return add.after(sleep(3))(n, 1)


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    FAILS.clear()
    with Flow(store_url=database_url) as flow:
        yield flow


def drawn(flow: Flow, run: Run[Any]) -> str:
    """The tree as `flowengine show` prints it."""
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(run_tree(run.info(), run.steps(), flow.clock.now))
    return console.export_text()


def step_at(run: Run[Any], name: str) -> StepInfo:
    return next(step for step in run.steps() if step.path.endswith(name))


def line_at(flow: Flow, run: Run[Any], name: str) -> StepLine:
    with flow.database.read() as session:
        lines = load_run_tree(session, run.id).lines
    return next(x for x in lines if isinstance(x, StepLine) and x.path.endswith(name))


def listed(flow: Flow, run: Run[Any]) -> tuple[RunInfo, RunSummary]:
    with flow.database.read() as session:
        summaries = {x.id: x for x in queries.run_summaries(session, limit=10)}
    return next(x for x in flow.engine.list() if x.id == run.id), summaries[run.id]


def test_a_step_in_backoff_shows_its_wait_its_error_and_its_tries(flow: Flow) -> None:
    FAILS.extend(["refused", "reset\nby peer"])
    run = flow.start(calling, 1)
    flow.settle()
    wait = "retries in 4.0 s after ConnectionError: refused (try 2 of 5)"
    assert f"↻ call  {wait}" in drawn(flow, run)
    assert styles.step_label(line_at(flow, run, ".call"), flow.clock.now)[2] == wait
    info, summary = listed(flow, run)
    assert outstanding(info.open_steps, info.retry, flow.clock.now) == f"calling.call {wait}"
    assert styles.run_note(summary, flow.clock.now) == f"calling.call {wait}"
    shown = json.loads(json.dumps(asdict(info)))["retry"]
    assert (shown["number"], shown["allowed"], shown["last"]["message"]) == (2, 5, "refused")

    flow.clock.advance(seconds=4)
    assert "call  waits for a worker" in drawn(flow, run)
    flow.settle()
    text = drawn(flow, run)
    assert "retries in 8.0 s after ConnectionError: reset\\nby peer (try 3 of 5)" in text
    assert "── try 1 ConnectionError: refused\n" in text
    step = json.loads(json.dumps(asdict(step_at(run, ".call"))))
    assert (step["tries"], step["allowed_tries"]) == (3, 5)
    assert step["retry_at"] == flow.clock.now + 8000
    assert [(x["number"], x["message"]) for x in step["failed_tries"]] == [
        (1, "refused"),
        (2, "reset\nby peer"),
    ]

    flow.clock.advance(seconds=8)
    flow.settle()
    text = drawn(flow, run)
    assert "call  0 ms, backoff 12.0 s  try 3 of 5" in text
    assert "try 2 ConnectionError: reset\\nby peer" in text, "a success shows how it came about"
    assert styles.try_label(line_at(flow, run, ".call")) == "try 3 of 5"
    assert [x.number for x in line_at(flow, run, ".call").failed_tries] == [1, 2]
    assert listed(flow, run)[0].retry is None


def test_a_list_shows_the_next_retry_and_the_number_of_other_steps(flow: Flow) -> None:
    FAILS.extend(["x" * 5_000] * 2)
    run = flow.start(both, 1)
    flow.settle()
    info, _ = listed(flow, run)
    text = outstanding(info.open_steps, info.retry, flow.clock.now)
    assert text.startswith("both.first retries in 4.0 s after ConnectionError: xxx")
    assert text.endswith("(try 2 of 5); 2 steps outstanding")
    assert len(text) < 400


def test_a_step_with_a_countdown_has_no_task_until_it_is_over(flow: Flow) -> None:
    """Celery's ``add.apply_async((n, 1), countdown=3)``, as the guide writes it."""
    run = flow.start(delayed, 1)
    flow.settle()
    assert flow.engine.tasks(run.id) == [], "it holds no worker and no message"
    flow.clock.advance(seconds=2)
    flow.watchdog()
    flow.settle()
    assert not run.info().is_final
    flow.clock.advance(seconds=1)
    flow.watchdog()
    flow.settle()
    assert run.result(timeout=0) == 2


def test_a_cancelled_step_that_never_ran_shows_no_duration(flow: Flow) -> None:
    run = flow.start(both, 1)
    worker = flow.worker("one")
    flow.clock.advance(seconds=3)
    worker.claim(run, "first")
    flow.clock.advance(seconds=2)
    run.cancel()
    flow.settle()
    for find in (lambda end: step_at(run, end), lambda end: line_at(flow, run, end)):
        assert elapsed(find(".first"), flow.clock.now) == ("2.0 s", "3.0 s")
        assert elapsed(find(".second"), flow.clock.now) == ("", "5.0 s"), "it was in the queue"
        assert elapsed(find(".add"), flow.clock.now) == ("", ""), "it waited for both"
        assert find(".second").ran is find(".add").ran is None
    assert elapsed(step_at(run, "both"), flow.clock.now) == ("5.0 s", "")
    assert "⊗ add  cancelled\n" in re.sub(" +\n", "\n", drawn(flow, run))


def test_the_time_of_a_step_separates_queue_and_run(flow: Flow) -> None:
    run = flow.start(calling, 1)
    flow.clock.advance(seconds=3)
    assert "call  waits for a worker  queued 3.0 s" in drawn(flow, run)
    worker = flow.worker("one")
    task = worker.claim(run, "call")
    flow.clock.advance(seconds=2)
    assert "▶ call  running  2.0 s, queued 3.0 s" in drawn(flow, run)
    worker.fail(task, "no")
    flow.clock.advance(seconds=4 + 1)  # the wait between two tries is not in the queue
    task = worker.claim(run, "call")
    flow.clock.advance(seconds=2)
    worker.report(task, 1)
    flow.clock.advance(seconds=60)
    flow.settle()
    for step in (step_at(run, ".call"), line_at(flow, run, ".call")):
        assert (step.ran, step.queued) == (4000, 4000)
        assert elapsed(step, flow.clock.now) == ("4.0 s", "4.0 s")
    assert elapsed(step_at(run, ".add"), flow.clock.now) == ("0 ms", "1 min 0 s")
    assert elapsed(step_at(run, "calling"), flow.clock.now)[1] == ""


def test_progress_says_that_a_run_creates_more_steps() -> None:
    assert styles.progress(2, 7, is_final=False) == "2 of at least 7"
    assert styles.progress(7, 7, is_final=True) == "7 of 7"
    assert styles.progress(9, 1001, is_final=True, is_counted=False) == "9 of more than 1,000"


def test_a_step_and_its_child_run_name_each_other(flow: Flow) -> None:
    run = flow.start(parent, 1)
    while not flow.engine.list(workflow="waits.calling"):
        task = flow.worker("one").claim_next()
        assert task is not None
        flow.worker("one").work_on(task)
    (child,) = flow.engine.list(workflow="waits.calling")
    assert child.parent == run.id
    waiting = [step for step in run.steps() if step.child_run]
    assert [step.child_run for step in waiting] == [child.id]
    assert line_at(flow, run, waiting[0].path).child_run == child.id
    assert f"run {child.id[:8]}" in drawn(flow, run)
    assert f"started by run {run.id[:8]}" in drawn(flow, flow.engine.run(child.id))
    flow.settle()
    assert run.result(timeout=0) == 2
    assert child.id in {step.child_run for step in run.steps()}

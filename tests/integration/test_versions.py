"""Retries that move a run to another program, and programs that differ from today's code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flowengine.engine.handles import Run
from flowengine.engine.versions import Versions
from flowengine.errors import ActionRefused
from flowengine.evaluator.states import RunState, TaskState
from flowengine.program.differences import FacetCode
from flowengine.program.nodes import Field
from flowengine.testing import Flow
from tests.builders import Node, block, event, given, of, program, step, to, workflow

E = event("E", "x", "y")


def version(*statements: Node, result: str) -> Node:
    return program(
        E, workflow("W", "n", "out", block(*statements, yields=[to("W", out=of(result))]))
    )


FIRST = version(step("a", "E", x=given("n")), step("b", "E", x=of("a.y")), result="b.y")
#: Sends something else to `b`, and has a step more.
SECOND = version(
    step("a", "E", x=given("n")), step("b", "E", x=7), step("c", "E", x=of("b.y")), result="c.y"
)
#: Has no step `a`.
THIRD = version(step("b", "E", x=given("n")), result="b.y")


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    with Flow(store_url=database_url) as flow:
        yield flow


def answer(flow: Flow, run: Run[Any], fails: str = "") -> list[str]:
    """Report all tasks of a run with their argument; return the paths that were executed."""
    done = []
    worker = flow.worker("w")
    while pending := [t for t in flow.engine.tasks(run.id) if t.state == TaskState.PENDING]:
        task = worker.claim(run, pending[0].step_path)
        done.append(task.step_path)
        if task.step_path == fails:
            worker.fail(task, "broken")
        else:
            worker.report(task, (task.data or {})["x"])
    return done


def test_a_retry_moves_the_run_to_the_new_program_and_keeps_its_results(flow: Flow) -> None:
    run = flow.engine.start(FIRST, "W", {"n": 1})
    answer(flow, run, fails="W.b")
    assert run.state == RunState.FAILED
    run.retry(program=SECOND)
    assert answer(flow, run) == ["W.b", "W.c"]
    assert run.outputs(timeout=0) == {"out": 7}


def test_a_program_without_the_kept_steps_is_refused_and_the_run_unchanged(flow: Flow) -> None:
    run = flow.engine.start(FIRST, "W", {"n": 1})
    answer(flow, run, fails="W.b")
    with pytest.raises(ActionRefused, match=r"the new program does not have these steps .* W\.a"):
        run.retry(program=THIRD)
    assert run.state == RunState.FAILED
    run.retry()
    assert answer(flow, run) == ["W.b"]
    assert run.outputs(timeout=0) == {"out": 1}


def test_a_fork_may_have_another_program(flow: Flow) -> None:
    run = flow.engine.start(FIRST, "W", {"n": 1})
    answer(flow, run)
    fork = run.fork(from_step="W.b", program=SECOND)
    assert answer(flow, fork) == ["W.b", "W.c"]
    assert fork.outputs(timeout=0) == {"out": 7}
    assert run.outputs(timeout=0) == {"out": 1}


def test_differences_count_the_unfinished_runs_of_each_program(flow: Flow) -> None:
    for document in (FIRST, FIRST, SECOND):
        flow.engine.start(document, "W", {"n": 1})
    ended = flow.engine.start(THIRD, "W", {"n": 1})
    flow.engine.cancel(ended.id)
    versions = Versions(flow.database, flow.engine.programs)
    code = {"E": FacetCode((Field("x"),), (Field("y"),))}
    by_runs = {d.runs: d for d in versions.differences({"W": SECOND}, code)}
    assert (by_runs[2].is_same, by_runs[1].is_same) == (False, True)
    assert [change.what for change in by_runs[2].changes] == ["has another body"]
    assert not by_runs[2].breaks
    broken = versions.differences({}, {})
    assert all(each.breaks and not each.is_known for each in broken)

"""Run ahead: the end of a call and what follows from it are one commit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowengine.engine.run_tree import StepLine, load_run_tree
from flowengine.evaluator.records import ACTIVATION
from tests.integration.functions import bodies
from tests.integration.functions.test_kept_functions import begun, counted
from tests.integration.functions.workers import WITH_TASKS, Worked, worked

pytestmark = pytest.mark.each_database


@pytest.fixture
def work(database_url: str, tmp_path: Path) -> Iterator[Worked]:
    with worked(database_url, tmp_path, **WITH_TASKS, worker_time_slice=60.0) as work:
        begun.clear()
        yield work


def activations(work: Worked, run: Any) -> int:
    return len([task for task in work.engine.tasks(run.id) if task.data_type == ACTIVATION])


def test_a_chain_of_calls_has_one_task_for_an_activation(work: Worked) -> None:
    run = work.start(counted, 8)
    work.settle()
    assert run.result(timeout=0) == 56
    assert begun == [8]
    assert activations(work, run) == 1
    # The first, and one for each call: those that ran ahead have no task, and are counted.
    (function,) = [step for step in run.steps() if step.facet.endswith("@1")]
    with work.engine.database.read() as session:
        lines = load_run_tree(session, run.id).lines
    (line,) = [one for one in lines if isinstance(one, StepLine) and one.facet.endswith("@1")]
    assert function.tries == line.tries == 1 + 8
    # The start, the first activation, and one for each call.
    assert len(run.history()) == 1 + 1 + 8


@pytest.mark.parametrize(
    ("flow", "result"),
    [(bodies.wide, [0, 2, 4]), (bodies.outer, 15), (bodies.steps, 14), (bodies.caught, "no 3; 6")],
)
def test_other_calls_go_on_as_without_it(work: Worked, flow: Any, result: Any) -> None:
    assert work.run(flow, 3) == result


def test_a_refused_commit_drops_the_coroutine(work: Worked) -> None:
    run = work.start(counted, 5)
    commit = work.engine.committer.commit_optimistically
    refused: list[str] = []

    def sometimes(by_run: Any, continuation: Any) -> Any:
        if not refused and continuation is not None and len(begun) == 1:
            ahead = continuation.run_ahead(by_run, work.engine.database.now())
            if ahead:
                refused.extend(by_run)
                continuation.settle_ahead(ahead, [])
                return {}
        return commit(by_run, continuation)

    work.engine.committer.commit_optimistically = sometimes  # type: ignore[method-assign]
    work.settle()
    assert refused
    assert run.result(timeout=0) == 20
    assert len(begun) > 1

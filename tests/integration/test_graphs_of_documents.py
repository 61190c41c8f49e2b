"""Graphs of tasks: a join waits for all, a failure skips what needs it once, the rest ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flowengine import event_facet
from flowengine.documents import compile_document
from flowengine.testing import Flow
from flowengine.worker.document_folder import declared_facet
from tests.registries import empty_registry

#: By name of the task: those it depends on.
DIAMOND = {"a": "", "b": "a", "c": "a", "e": "b, c"}


@pytest.fixture
def flow() -> Iterator[Flow]:
    with empty_registry(), Flow() as made:
        event_facet(name="x.f")(lambda name: name)
        yield made


def start(flow: Flow, graph: dict[str, str]) -> Any:
    rows = [f"  {n}: {{call: x.f, with: {{name: {n}}}, depends: [{d}]}}" for n, d in graph.items()]
    document = compile_document("\n".join(["tasks:", *rows]), "w", "w.yml")
    return flow.engine.start(document.program, "w", {})


def open_tasks(flow: Flow, run: Any) -> set[str]:
    tries = [t for t in flow.engine.tasks(run.id) if t.state in ("pending", "running")]
    assert len({task.step_path for task in tries}) == len(tries)
    return {task.step_path.rpartition(".")[2] for task in tries}


def states(run: Any) -> dict[str, str]:
    return {step.path.rpartition(".")[2]: step.status for step in run.steps() if "." in step.path}


def test_a_join_waits_for_all_and_runs_once(flow: Flow) -> None:
    run = start(flow, {"a": "", "b": "", "c": "a, b"})
    worker = flow.worker("w1")
    assert open_tasks(flow, run) == {"a", "b"}  # side by side
    slow = worker.claim(run, "b")
    worker.work_on(worker.claim(run, "a"))
    assert open_tasks(flow, run) == {"b"}
    worker.work_on(slow)
    assert open_tasks(flow, run) == {"c"}
    flow.settle()
    assert (run.info().state, len(flow.engine.tasks(run.id))) == ("COMPLETED", 3)


def test_the_failure_of_the_root_of_a_diamond_skips_each_task_once(flow: Flow) -> None:
    run = start(flow, DIAMOND)
    worker = flow.worker("w1")
    worker.fail(worker.claim(run, "a"), "no rows")
    assert run.info().state == "FAILED"
    assert states(run) == {"a": "FAILED", "b": "SKIPPED", "c": "SKIPPED", "e": "SKIPPED"}


def test_a_failure_leaves_tasks_that_do_not_need_it_and_ends_the_run_after_them(
    flow: Flow,
) -> None:
    run = start(flow, {**DIAMOND, "d": "b", "alone": ""})
    worker = flow.worker("w1")
    worker.work_on(worker.claim(run, "a"))
    b = worker.claim(run, "b")
    worker.work_on(worker.claim(run, "c"))
    worker.fail(b, "no rows")
    assert (run.info().state, open_tasks(flow, run)) == ("RUNNING", {"alone"})
    flow.settle()
    assert run.info().state == "FAILED"
    expected = {"a": "COMPLETED", "b": "FAILED", "c": "COMPLETED", "alone": "COMPLETED"}
    assert states(run) == {**expected, "d": "SKIPPED", "e": "SKIPPED"}


def test_a_run_whose_worker_is_lost_for_good_has_crashed(flow: Flow) -> None:
    event_facet(name="x.once", max_losses=0)(lambda: None)
    text = "tasks: {a: {call: x.once}}"
    document = compile_document(text, "w", "w.yml", find_facet=declared_facet)
    run = flow.engine.start(document.program, "w", {})
    worker = flow.worker("w1")
    task = worker.claim(run, "a")
    worker.die()
    flow.watchdog()
    assert (run.info().state, run.info().status) == ("FAILED", "CRASHED")
    assert states(run) == {"a": "CRASHED"}
    assert not worker.report(task, {"result": None}), "a late report is refused"

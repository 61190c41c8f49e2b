"""A step that starts a run of its own: a graph that is decided while the run is under way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flowengine import Retry, attempt, concat, event_facet, foreach, when, workflow
from flowengine.authoring import event_facet_names
from flowengine.engine import Run, locked_commit
from flowengine.errors import AuthoringError, RunFailed
from flowengine.evaluator.triggers import Lost
from flowengine.settings import Settings
from flowengine.store.claims import WorkerIdentity
from flowengine.testing import Flow
from flowengine.worker import TaskWorker
from tests.integration.engines import opened


@event_facet
def double(n: int) -> int:
    return 2 * n


@event_facet
def refuse(n: int) -> int:
    raise ValueError(f"{n} is refused")


@event_facet
def copies(n: int, text: str) -> str:
    return n * text


@event_facet
def total(ns: list[int]) -> int:
    return sum(ns)


@workflow
def doubled(n: int) -> int:
    return double(n)


@workflow
def refused(n: int) -> int:
    return refuse(n)


@workflow
def long_text(n: int) -> str:
    return copies(n, "text ")


@event_facet
def plan(n: int) -> int:
    """Decide what to go on with."""
    if n == 0:
        return 0
    return doubled.call(n) if n > 0 else refused.call(n)


@event_facet
def write(n: int) -> str:
    return long_text.call(n)


@event_facet
def count_down(n: int) -> int:
    return countdown.call(n - 1) if n > 0 else 0


@event_facet
def plan_badly(n: int) -> int:
    return doubled.call("seven")  # type: ignore[arg-type]


@workflow
def planned(n: int) -> int:
    return double(plan(n))


@workflow
def several(ns: list[int]) -> int:
    return total(foreach(ns, lambda n: plan(n)))


@workflow
def written(n: int) -> str:
    return write(n)


@workflow
def countdown(n: int) -> int:
    return count_down(n)


@workflow
def all_doubled(ns: list[int]) -> list[int]:
    return foreach(ns, lambda n: double(n))


@event_facet
def go_wide(ns: list[int]) -> list[int]:
    return all_doubled.call(ns)


@workflow
def goes_wide(ns: list[int]) -> list[int]:
    return go_wide(ns)


@workflow
def badly_planned(n: int) -> int:
    return plan_badly(n)


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    with Flow(store_url=database_url) as flow:
        yield flow


def children(flow: Flow, run: Run[int]) -> list[str]:
    return [info.id for info in flow.engine.list() if info.parent == run.id]


def test_a_facet_goes_on_with_a_workflow_that_it_chooses(flow: Flow) -> None:
    assert flow.run(planned, 5) == 20
    assert flow.run(planned, 0) == 0


def test_the_run_that_a_step_waits_for_is_a_run_like_any_other(flow: Flow) -> None:
    run = flow.start(planned, 5)
    worker = flow.worker("one")
    worker.work_on(worker.claim(run, "plan"))
    (child,) = children(flow, run)
    assert flow.engine.get(child).workflow == doubled.name
    assert run.info().state == "RUNNING"
    assert not run.info().alarm
    (step,) = (step for step in run.steps() if step.path == "planned.plan")
    assert step.task_state == "ignored", "it was neither completed nor will it be tried again"
    flow.watchdog()
    assert [task.state for task in flow.engine.tasks(run.id)] == ["ignored"]
    flow.settle()
    assert run.result(timeout=0) == 20


def test_a_run_that_fails_fails_the_step_that_waits_for_it(flow: Flow) -> None:
    with pytest.raises(RunFailed, match="-3 is refused") as raised:
        flow.run(planned, -3)
    assert raised.value.path == "planned.plan"
    assert raised.value.error_type == "ValueError"


def test_items_go_on_with_runs_of_their_own_and_are_joined(flow: Flow) -> None:
    assert flow.run(several, list(range(30))) == sum(2 * n for n in range(30))


@pytest.mark.parametrize("more", [0, 1])
def test_a_child_that_ends_with_a_full_batch_of_reports_continues_its_parent(
    more: int, database_url: str, tmp_path: Path
) -> None:
    """No watchdog runs here: the commit of the end continues the step that waits."""
    settings = Settings(spool_directory=str(tmp_path), chord_time_slice=60, worker_time_slice=60)
    numbers = list(range(locked_commit._MAX_TRIGGERS + more))
    with opened(database_url, settings=settings) as engine:
        task_worker = TaskWorker(engine, WorkerIdentity("s", "b" * 32, 1), event_facet_names)
        run = engine.start(goes_wide.program(), goes_wide.name, {"ns": numbers})
        while task_worker.drain("default"):
            pass
        assert run.result(timeout=0) == [2 * n for n in numbers]


def test_a_large_result_comes_back_whole(flow: Flow) -> None:
    assert flow.run(written, 5_000) == 5_000 * "text "


def test_runs_may_wait_for_each_other_in_a_long_row(flow: Flow) -> None:
    assert flow.run(countdown, 150) == 0
    assert len(flow.engine.list(limit=500)) == 151


def test_inputs_that_do_not_fit_the_workflow_fail_the_calling_step(flow: Flow) -> None:
    with pytest.raises(RunFailed, match="seven"):
        flow.run(badly_planned, 1)


def test_a_worker_that_dies_after_starting_the_run_starts_no_second_one(flow: Flow) -> None:
    run = flow.start(planned, 5)
    worker = flow.worker("one")
    task = worker.claim(run, "plan")
    flow.engine.start_child(task, doubled.program(), doubled.name, {"n": 5}, waits=True)
    flow.engine.report(task, Lost("killed"))
    flow.settle()
    assert run.result(timeout=0) == 20
    assert len(children(flow, run)) == 1


def test_a_child_that_ends_before_its_start_is_reported_continues_its_parent(
    flow: Flow, caplog: pytest.LogCaptureFixture
) -> None:
    run = flow.start(planned, 5)
    worker = flow.worker("one")
    task = worker.claim(run, "plan")
    flow.engine.start_child(task, doubled.program(), doubled.name, {"n": 5}, waits=True)
    flow.settle()
    assert run.result(timeout=0) == 20
    assert not worker.work_on(task), "the step has ended"
    assert run.result(timeout=0) == 20
    assert not caplog.records, "and no warning is logged"


def test_the_watchdog_continues_a_run_whose_child_ended_unnoticed(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = flow.start(planned, 5)
    worker = flow.worker("one")
    worker.work_on(worker.claim(run, "plan"))
    (child,) = children(flow, run)
    with monkeypatch.context() as killed:
        # The process dies right after the commit in which the child ended.
        killed.setattr(flow.engine.after_commit, "finish", lambda *_: [])
        task = worker.claim(flow.engine.run(child), "double")
        worker.work_on(task)
    assert flow.engine.get(child).is_final
    assert not run.info().is_final
    flow.watchdog()
    flow.settle()
    assert run.result(timeout=0) == 20


def test_retries_are_for_the_facet_not_for_the_run_it_goes_on_with(flow: Flow) -> None:
    with pytest.raises(RunFailed, match="-1 is refused"):
        flow.run(patiently_planned, -1)
    assert len(flow.engine.list()) == 2


@event_facet(retry=Retry(attempts=3))
def plan_patiently(n: int) -> int:
    return refused.call(n)


@workflow
def patiently_planned(n: int) -> int:
    return plan_patiently(n)


# --- started by a step of a workflow ---


@event_facet
def show(run_id: str) -> str:
    return f"see {run_id}"


@workflow
def leaves_it(n: int) -> str:
    return show(doubled.start(n).id)


@workflow
def waits_for_it(n: int) -> int:
    run = doubled.named("background").start(n)
    return double(run.result())


@workflow
def waits_for_many(ns: list[int]) -> int:
    return total(foreach(ns, lambda n: doubled.start(n).result()))


@workflow
def recovers(n: int) -> str:
    return attempt(
        lambda: show(concat("run ", refused.start(n).result())), catch=lambda error: error.message
    )


@workflow
def matryoshka(n: int) -> int:
    return when(n > 0, lambda: matryoshka.start(n - 1).result(), otherwise=0)


def test_a_workflow_starts_a_run_and_goes_on(flow: Flow) -> None:
    run = flow.start(leaves_it, 4)
    worker = flow.worker("one")
    worker.work_on(worker.claim(run, "doubled"))
    (child,) = children(flow, run)
    worker.work_on(worker.claim(run, "show"))
    assert run.result(timeout=0) == f"see {child}"
    assert not flow.engine.get(child).is_final, "nobody waits for it"
    flow.settle()
    assert flow.engine.get(child).outputs == {"result": 8}


def test_a_workflow_waits_for_a_run_whose_result_it_uses(flow: Flow) -> None:
    assert flow.run(waits_for_it, 4) == 16
    assert "waits_for_it.background" in flow.paths(flow.start(waits_for_it, 4))


def test_runs_that_items_start_run_side_by_side(flow: Flow) -> None:
    run = flow.start(waits_for_many, [1, 2, 3])
    worker = flow.worker("one")
    for index in range(3):
        worker.work_on(worker.claim(run, f"foreach[{index}].doubled"))
    assert len(children(flow, run)) == 3
    flow.settle()
    assert run.result(timeout=0) == 12


def test_the_failure_of_a_run_is_caught_like_any_other(flow: Flow) -> None:
    assert flow.run(recovers, 9) == "9 is refused"


def test_a_workflow_may_start_itself(flow: Flow) -> None:
    assert flow.run(matryoshka, 20) == 0
    assert len(flow.engine.list(limit=100)) == 21


def test_a_start_in_a_workflow_says_what_it_does_not_take() -> None:
    @workflow(name="t.with_key")
    def with_key(n: int) -> int:
        return doubled.options(key="once").start(n).result()

    with pytest.raises(AuthoringError, match="takes no options"):
        with_key.program()

    @workflow(name="t.with_timeout")
    def with_timeout(n: int) -> int:
        return doubled.start(n).result(timeout=5)

    with pytest.raises(AuthoringError, match="takes no timeout"):
        with_timeout.program()

    @workflow(name="t.reads_state")
    def reads_state(n: int) -> str:
        return doubled.start(n).state

    with pytest.raises(AuthoringError, match=r"has \.id and \.result\(\) there, not \.state"):
        reads_state.program()

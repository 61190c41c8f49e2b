"""Durable functions: each call with a task of its own, and quick calls made in place."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from flowengine import workflow
from flowengine.assembly.embedded import Embedded
from flowengine.assembly.launcher import EngineLauncher
from flowengine.authoring import StartOptions
from flowengine.engine.results import child_run_id
from flowengine.errors import RunFailed
from flowengine.evaluator.states import ObjectType, StepState
from flowengine.settings import Settings
from flowengine.testing import Flow
from tests.integration.functions import bodies
from tests.integration.functions.workers import IN_PLACE, WITH_TASKS, Worked, worked


@pytest.fixture(params=[WITH_TASKS, IN_PLACE], ids=["tasks", "in-place"])
def work(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> Iterator[Worked]:
    with worked(database_url, tmp_path, **request.param) as work:
        if request.param is IN_PLACE:
            for flow in (bodies.chain, bodies.looks):
                work.run(flow, 3)  # the worker learns which facets are quick
        bodies.made.clear()
        yield work


def test_a_loop_of_calls_returns_its_result(work: Worked) -> None:
    assert work.run(bodies.chain, 5) == 6
    assert bodies.made == [1, 2, 3, 4, 5]


def test_a_gather_makes_every_call_once(work: Worked) -> None:
    assert work.run(bodies.wide, 20) == [2 * n for n in range(20)]
    assert sorted(bodies.made) == list(range(20))


def test_more_calls_than_one_commit_holds_are_made_in_portions(work: Worked) -> None:
    assert work.run(bodies.wide, 520) == [2 * n for n in range(520)]
    assert sorted(bodies.made) == list(range(520))


def test_the_error_of_a_call_is_caught_as_its_own_class(work: Worked) -> None:
    assert work.run(bodies.caught, 3) == "no 3; 6"


def test_an_error_that_nobody_catches_fails_the_run_and_names_the_call(work: Worked) -> None:
    with pytest.raises(RunFailed) as caught:
        work.run(bodies.uncaught, 3)
    assert "uncaught.uncaught.refuse#1" in str(caught.value)
    assert "no 3" in str(caught.value)


def test_a_call_is_retried_as_its_facet_says(work: Worked) -> None:
    run = work.start(bodies.patient, 7)
    work.settle()
    work.pass_time(1)
    work.pass_time(1)
    assert run.result(timeout=0) == 7
    assert bodies.made == [7, 7, 7]


def test_a_sleep_is_a_row_with_a_due_time(work: Worked) -> None:
    run = work.start(bodies.naps, 3600.0)
    work.settle()
    assert not run.info().is_final
    work.pass_time(3599)
    assert not run.info().is_final
    work.pass_time(2)
    slept: datetime = run.result(timeout=0)
    assert slept.astimezone(UTC).timestamp() * 1000 >= work.clock.now - 3_000


def test_an_answer_ends_a_wait(work: Worked) -> None:
    run = work.start(bodies.asks, "name")
    work.settle()
    run.send("name", "ada")
    work.settle()
    assert run.result(timeout=0) == "ada"


def test_a_timeout_ends_a_wait_that_nobody_answers(work: Worked) -> None:
    run = work.start(bodies.asks, "name")
    work.settle()
    work.pass_time(61)
    assert run.result(timeout=0) == "nobody"


def test_the_loser_of_a_race_is_cancelled(work: Worked) -> None:
    assert work.run(bodies.races, 5) in (10, 12, 22)


def test_a_function_awaits_graphs_and_functions_as_runs_of_their_own(work: Worked) -> None:
    run = work.start(bodies.outer, 3)
    work.settle()
    assert run.result(timeout=0) == 12 + 3
    calls = [step for step in run.steps() if step.object_type == ObjectType.FUNCTION_CALL]
    assert [work.engine.get(child_run_id(call.id)).state for call in calls] == ["COMPLETED"] * 2


def test_the_failure_of_an_awaited_run_is_raised_in_the_function(work: Worked) -> None:
    assert work.run(bodies.fails_below, 4) == "told: no 4"


def test_a_graph_calls_a_function_for_each_item(work: Worked) -> None:
    assert work.run(bodies.survey, [1, 2, 3]) == ["no 1; 2", "no 2; 4", "no 3; 6"]


def test_a_cancelled_run_leaves_nothing_open(work: Worked) -> None:
    run = work.start(bodies.asks, "name")
    work.settle()
    run.cancel()
    assert run.info().state == "CANCELLED"
    assert {task.state for task in work.engine.tasks(run.id)} == {"completed"}


def test_a_deadline_ends_a_function_with_its_calls(work: Worked) -> None:
    run = work.start(hurried, "name")
    work.settle()
    work.pass_time(11)
    with pytest.raises(RunFailed, match="has not ended within 10 s"):
        run.result(timeout=0)
    states = {step.path: step.state for step in run.steps()}
    assert states["hurried.asks"] == StepState.ERROR
    assert {state for path, state in states.items() if "#" in path} == {StepState.CANCELLED}


@workflow
def hurried(name: str) -> str:
    return bodies.asks.within(10)(name)


def test_plain_functions_are_recorded_in_place(work: Worked) -> None:
    assert work.run(bodies.steps, 3) == 6 + 4 + 4
    assert bodies.made == [3, 3, 3]
    assert work.run(bodies.failing_step, 3) == "below zero: -3"


def test_a_facet_that_changes_its_argument_changes_nothing_in_the_function(work: Worked) -> None:
    for _ in range(3):
        assert work.run(bodies.unspoiled, 1) == [[1, 99], [1]]


def test_calls_without_effects_return_their_results(work: Worked) -> None:
    assert work.run(bodies.looks, 70) == 140
    assert bodies.made == [*range(70), 70]


def test_a_facet_may_continue_with_a_workflow(work: Worked) -> None:
    for _ in range(4):
        assert work.run(bodies.delegated, 2) == 8


def test_an_early_answer_is_kept_for_the_function_that_will_ask(work: Worked) -> None:
    run = work.start(bodies.asks, "name")
    run.send("name", "ada")
    work.settle()
    assert run.result(timeout=0) == "ada"


def test_an_embedded_process_runs_functions(database_url: str, tmp_path: Path) -> None:
    settings = Settings(database_url=database_url, spool_directory=str(tmp_path))
    embedded = Embedded(settings)
    try:
        launcher = EngineLauncher(embedded.engine)
        chain = launcher.start(bodies.chain, bodies.chain.inputs(8), StartOptions())
        survey = launcher.start(bodies.survey, bodies.survey.inputs([1, 2]), StartOptions())
        assert chain.result(timeout=60) == 9
        assert survey.result(timeout=60) == ["no 1; 2", "no 2; 4"]
    finally:
        embedded.close()


def test_flow_runs_a_function(database_url: str) -> None:
    bodies.made.clear()
    with Flow(store_url=database_url) as flow:
        assert flow.run(bodies.chain, 3) == 4
        assert flow.run(bodies.asks, "name") == "nobody"
        assert flow.run(bodies.outer, 3) == 15

"""Answers from outside are held against the types and schemas that the program has stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from flowengine import Retry, RunFailed, event_facet, workflow
from flowengine.engine import Engine, Run
from flowengine.errors import ValueRefused
from flowengine.evaluator import StepState
from flowengine.evaluator.states import RunState
from flowengine.evaluator.triggers import Failed, Succeeded
from flowengine.testing import Flow
from tests.builders import block, event, given, namespace, of, program, step, to
from tests.builders import workflow as declared_workflow
from tests.integration.engines import claim


@dataclass
class Review:
    approved: bool
    stars: int


@event_facet(retry=Retry(attempts=3))
def count(text: str) -> int:
    return len(text)


@event_facet
def review(text: str) -> Review:
    return Review(True, 5)


@event_facet
def store(text: str) -> None: ...


@workflow
def counted(text: str) -> int:
    return count(text)


@workflow
def reviewed(text: str) -> Review:
    return review(text)


@workflow
def stored(text: str) -> None:
    store(text)


@pytest.fixture
def flow() -> Iterator[Flow]:
    with Flow() as flow:
        yield flow


def waiting_step(run: Run[Any]) -> str:
    (found,) = [step.id for step in run.steps() if step.state == StepState.EVENT_TRANSMIT]
    return found


def assert_refused(flow: Flow, run: Run[Any], answer: Any, says: str) -> None:
    waiting = waiting_step(run)
    with pytest.raises(ValueRefused, match=says):
        flow.engine.continue_step(waiting, answer)
    assert waiting_step(run) == waiting, "the step still waits"


def test_a_value_that_is_no_map_is_the_only_result(flow: Flow) -> None:
    run = flow.start(counted, "a")
    flow.engine.continue_step(waiting_step(run), 42)
    assert run.result(timeout=0) == 42


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("not an int", r"counted\.count does not fit: 'result': expected Long, found 'not an int'"),
        ({"result": "not an int"}, "'result': expected Long, found 'not an int'"),
        ({"reslt": 1}, r"'reslt' is unknown, .*\.count returns result"),
        ({"result": 1, "more": 2}, "'more' is unknown"),
        ([1], "expected Long, found a list"),
        ({1: 2}, "key 1"),
        (1.5, "expected Long"),
        (float("nan"), "not JSON"),
        (None, "'result': expected Long, found null"),
        ({}, "'result': expected Long, found null"),
        ({"result": None}, "'result': expected Long, found null"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused(flow: Flow, answer: Any, says: str) -> None:
    assert_refused(flow, flow.start(counted, "a"), answer, says)


def test_an_answer_is_validated_by_the_stored_schema(flow: Flow) -> None:
    run = flow.start(reviewed, "a")
    assert_refused(flow, run, {"result": {"approved": True}}, "'stars' is a required property")
    assert_refused(flow, run, None, "'result': .*None is not of type 'object'")
    assert_refused(flow, run, {"result": {"approved": 1, "stars": 1}}, "approved")
    flow.engine.continue_step(waiting_step(run), {"result": {"approved": False, "stars": 1}})
    assert run.result(timeout=0) == Review(False, 1)


def test_a_step_without_result_is_continued_without_an_answer(flow: Flow) -> None:
    run = flow.start(stored, "a")
    assert_refused(flow, run, 1, "is not of type 'null'")
    flow.engine.continue_step(waiting_step(run))
    assert run.info().state == RunState.COMPLETED


def test_a_step_that_has_moved_on_ignores_an_answer_that_does_not_fit(flow: Flow) -> None:
    run = flow.start(counted, "a")
    waiting = waiting_step(run)
    flow.engine.continue_step(waiting, 1)
    flow.engine.continue_step(waiting, {"reslt": "late"})
    assert run.result(timeout=0) == 1


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ({"result": "not an int"}, "'result': expected Long, found 'not an int'"),
        ({"result": 1, "more": 2}, "'more' is unknown"),
        ({}, "'result': expected Long, found null"),
    ],
)
def test_a_poller_that_reports_another_type_fails_the_step(
    flow: Flow, result: dict[str, Any], says: str
) -> None:
    run = flow.start(counted, "a")
    flow.engine.report(flow.worker("w").claim(run, "count"), Succeeded(result))
    with pytest.raises(RunFailed, match=says) as failed:
        run.result(timeout=0)
    assert failed.value.error_type == "DoesNotFit"
    assert len(flow.engine.tasks(run.id)) == 1, "another try would return the same"


def test_a_report_of_a_poller_is_validated_by_the_stored_schema(flow: Flow) -> None:
    run = flow.start(reviewed, "a")
    flow.worker("w").report(flow.worker("w").claim(run, "review"), {"approved": True})
    with pytest.raises(RunFailed, match="'stars' is a required property"):
        run.result(timeout=0)


def test_a_poller_may_report_a_value_or_a_text_as_error(flow: Flow) -> None:
    run = flow.start(counted, "a")
    flow.engine.report(flow.worker("w").claim(run, "count"), Succeeded(42))  # type: ignore[arg-type]
    assert run.result(timeout=0) == 42
    run = flow.start(counted, "a")
    flow.engine.report(
        flow.worker("w").claim(run, "count"),
        Failed("no answer", retry=False),  # type: ignore[arg-type]
    )
    assert run.info().error_text == "counted.count: Error: no answer"
    run = flow.start(counted, "a")
    flow.engine.fail_step(waiting_step(run), 42)  # type: ignore[arg-type]
    assert run.info().error_text == "counted.count: StepFailed: 42"


def test_a_facet_that_declares_no_returns_accepts_any(flow: Flow) -> None:
    asked = block(step("a", "Ask", x=given("x")))
    document = program(namespace("t", event("Ask", "x"), declared_workflow("Flow", "x", "", asked)))
    run = flow.engine.start(document, "Flow", {"x": 1})
    assert_refused(flow, run, 42, "must be left out, not a value of type int")
    flow.engine.continue_step(waiting_step(run), {"grams": 4})
    assert run.info().state == RunState.COMPLETED


def test_a_poller_may_report_none_of_the_results_of_afl(flow: Flow) -> None:
    asked = block(step("a", "Ask", x=given("x")))
    asks = event("Ask", "x", "y:Long")
    document = program(namespace("t", asks, declared_workflow("Flow", "x", "", asked)))
    run = flow.engine.start(document, "Flow", {"x": 1})
    flow.engine.report(claim(flow.engine, "t.Ask"), Succeeded({}))
    assert run.info().state == RunState.COMPLETED


def test_each_of_several_results_is_named(flow: Flow) -> None:
    asked = step("a", "Ask", x=given("x"))
    flow_of = declared_workflow("Flow", "x", "y", block(asked, yields=[to("Flow", y=of("a.y"))]))
    document = program(namespace("t", event("Ask", "x", "y:Long z"), flow_of))
    engine: Engine = flow.engine
    run = engine.start(document, "Flow", {"x": 1})
    assert_refused(flow, run, 42, "must be a map with the results y, z, not a value of type int")
    assert_refused(flow, run, {"w": 1}, "'w' is unknown, t.Ask returns y, z")
    task = claim(engine, "t.Ask")
    engine.continue_step(task.step_id, {"y": 1, "z": None})
    assert run.outputs(timeout=0) == {"y": 1}

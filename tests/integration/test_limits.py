"""Every limit is enforced, and its error says which it is and what to do."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from flowengine import event_facet, foreach, when, workflow
from flowengine.assembly.launcher import EngineLauncher
from flowengine.engine import Engine
from flowengine.engine.run_tree import load_run_tree
from flowengine.errors import InvalidInputs, InvalidProgram, LimitReached, RunFailed
from flowengine.program import parse_program
from flowengine.program.limits import Limits
from flowengine.settings import Settings
from flowengine.testing import Flow
from tests import builders
from tests.integration.engines import call, dump, opened, program
from tests.integration.engines import workflow as workflow_node
from tests.integration.threads import in_threads
from tests.unit.evaluator.test_limits import branching


@contextmanager
def flow_with(url: str, **settings: Any) -> Iterator[Flow]:
    with Flow(store_url=url, settings=Settings(**settings)) as flow:
        yield flow


# --- child runs ---


@event_facet(name="limits.inc")
def inc(n: int) -> int:
    return n + 1


@workflow(name="limits.twice")
def twice(n: int) -> int:
    """Starts itself twice, and waits for neither."""
    return when(n >= 0, lambda: inc(_started(twice.start(n).id, twice.start(n).id)), otherwise=0)


@event_facet(name="limits.started")
def _started(first: str, second: str) -> int:
    return 1


@event_facet(name="limits.again")
def again(n: int) -> int:
    return endless.call(n + 1)


@workflow(name="limits.endless")
def endless(n: int) -> int:
    return again(n)


def test_a_workflow_that_starts_itself_twice_meets_the_limit_of_child_runs(
    database_url: str,
) -> None:
    with flow_with(database_url, max_child_runs=30) as flow:
        root = flow.start(twice, 1)
        flow.settle()
        runs = flow.engine.list(limit=1_000)
        assert len(runs) == 31
        assert {run.state for run in runs} <= {"COMPLETED", "FAILED"}
        errors = [run.error for run in runs if run.error]
        assert {error["type"] for error in errors} == {"LimitReached"}
        for part in (root.id, "30", "max_child_runs", "must end"):
            assert part in errors[0]["message"]


def test_a_facet_that_returns_the_call_of_its_own_workflow_meets_the_limit_of_depth(
    database_url: str,
) -> None:
    with flow_with(database_url, max_child_depth=10) as flow:
        with pytest.raises(RunFailed, match="LimitReached") as caught:
            flow.run(endless, 0)
        assert "max_child_depth" in caught.value.message
        assert len(flow.engine.list(limit=100)) == 11


def test_a_child_run_that_was_started_before_is_not_counted_again(database_url: str) -> None:
    with flow_with(database_url, max_child_runs=1) as flow:
        run = flow.start(endless, 0)
        task = flow.worker("one").claim(run, "again")
        arguments = (task, endless.program(), endless.name, {"n": 1})
        first = flow.engine.start_child(*arguments, waits=True)
        assert flow.engine.start_child(*arguments, waits=True) == first
        child = flow.engine.run(first)
        task = flow.worker("one").claim(child, "again")
        with pytest.raises(LimitReached, match="max_child_runs"):
            flow.engine.start_child(task, endless.program(), endless.name, {"n": 2}, waits=True)


def test_workers_that_start_child_runs_at_once_meet_the_limit_exactly(database_url: str) -> None:
    with flow_with(database_url, max_child_runs=5) as flow:
        root = flow.start(endless, 0)
        first = flow.worker("one").claim(root, "again")
        tasks = [replace(first, step_id=f"{n:032x}") for n in range(12)]
        found: list[str] = []

        def start(task: Any) -> None:
            try:
                arguments = (task, endless.program(), endless.name, {"n": 1})
                flow.engine.start_child(*arguments, waits=False)
                found.append("started")
            except LimitReached:
                found.append("refused")

        in_threads([lambda task=task: start(task) for task in tasks])
        assert (found.count("started"), found.count("refused")) == (5, 7)
        assert len(flow.engine.list(limit=100)) == 6


# --- bytes ---


def test_a_run_that_writes_too_many_bytes_fails_at_the_limit(database_url: str) -> None:
    body = builders.block(
        builders.step("f", "F", x=builders.joined(builders.given("text"), builders.given("i"))),
        foreach=("i", builders.given("is")),
        yields=[builders.to("W", ys=builders.listed(builders.given("i")))],
    )
    keep = builders.facet("F", "x", "", builders.block())
    document = builders.program(keep, builders.workflow("W", "text is", "ys", body))
    inputs = {"text": "x" * 10_000, "is": list(range(300))}
    settings = Settings(max_run_bytes=1_000_000, max_commit_bytes=50_000)
    with opened(database_url, settings=settings) as engine:
        run = engine.start(document, "W", inputs)
        with pytest.raises(RunFailed, match=r"TooManyBytes.*1,000,000 bytes.*max_run_bytes"):
            run.result(timeout=0)
        with engine.database.read() as session:
            (head,) = session.runs.headers([run.id]).values()
        assert 1_000_000 < head.view.value_bytes < 1_500_000
    with opened(database_url) as engine:
        run = engine.start(document, "W", inputs)
        assert run.result(timeout=0) == {"ys": list(range(300))}
        with engine.database.read() as session:
            (head,) = session.runs.headers([run.id]).values()
        assert head.view.value_bytes > 3_000_000


# --- steps ---


def created(engine: Engine, run_id: str) -> list[int]:
    """The steps that each commit of a run has created."""
    history = dump(engine)["flowengine_history"]
    summaries = [json.loads(summary) for row_id, _, _, summary in history if row_id == run_id]
    return [summary.get("created", 0) for summary in summaries]


def test_a_graph_of_many_steps_is_created_over_several_commits(database_url: str) -> None:
    with opened(database_url, settings=Settings(max_commit_steps=100)) as engine:
        run = engine.start(branching(9), "W", {})
        assert run.result(timeout=0) == {"n": 256}
        assert max(created(engine, run.id)) < 110
        assert sum(created(engine, run.id)) == len(run.steps())


def test_a_graph_without_end_fails_at_the_limit_and_leaves_a_page_that_can_be_read(
    database_url: str,
) -> None:
    settings = Settings(max_run_steps=3_000, max_commit_steps=500)
    with opened(database_url, settings=settings) as engine:
        run = engine.start(branching(40), "W", {})
        with pytest.raises(RunFailed, match=r"TooManySteps.*3,000.*max_run_steps"):
            run.result(timeout=0)
        assert len(run.steps()) <= 3_000
        with engine.database.limited_read(5.0) as session:
            tree = load_run_tree(session, run.id, 100)
            assert len(tree.lines) == 100
            assert tree.is_cut
            tree = load_run_tree(session, run.id, 2_000, most_bytes=10_000)
            assert 100 < len(tree.lines) < 1_000
            assert tree.is_cut


# --- programs ---


def nested_sum(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = builders.op(value, "+", 1)
    block = builders.block(yields=[builders.to("W", y=value)])
    return builders.program(builders.workflow("W", "", "y", block))


@pytest.mark.parametrize("as_nodes", [False, True], ids=["as JSON", "as nodes"])
def test_a_deeply_nested_program_is_refused_at_the_start_not_in_a_worker(
    database_url: str, as_nodes: bool
) -> None:
    def form(document: Any) -> Any:
        unlimited = Limits.of(Settings(max_program_depth=10_000))
        return parse_program(document, unlimited) if as_nodes else document

    with opened(database_url) as engine:
        assert engine.start(form(nested_sum(150)), "W", {}).result(timeout=0) == {"y": 151}
        with pytest.raises(InvalidProgram, match="nested too deeply"):
            engine.start(form(nested_sum(450)), "W", {})


def test_a_program_beyond_its_size_is_refused(database_url: str) -> None:
    steps = [call(f"s{n}", "Work") for n in range(100)]
    large = program(workflow_node(steps, {}))
    with (
        opened(database_url, settings=Settings(max_program_bytes=2_000)) as engine,
        pytest.raises(InvalidProgram, match=r"the limit is 2,000 \(setting max_program_bytes\)"),
    ):
        engine.start(large, "Flow", {})


# --- errors, logs, messages ---


@event_facet(name="limits.shout")
def shout(n: int) -> int:
    raise ValueError("x" * 1_000_000)


@workflow(name="limits.inner")
def inner(ns: list[int]) -> list[int]:
    return foreach(ns, lambda n: shout(n))


@workflow(name="limits.outer")
def outer(ns: list[int]) -> list[int]:
    return inner(ns)


def test_long_error_messages_do_not_fill_the_database(database_url: str) -> None:
    with flow_with(database_url) as flow:
        with pytest.raises(RunFailed, match="xxx") as caught:
            flow.run(outer, [1, 2, 3])
        assert len(caught.value.message) <= 1_000
        whole = [
            step.error
            for step in flow.engine.steps(flow.engine.list()[0].id)
            if step.error and step.error["path"] == step.path
        ]
        lengths = {len(error["message"]) for error in whole}
        assert lengths == {8_000}
        assert whole[0]["message"].endswith("x… (1,000,000 characters)")
        assert len(str(dump(flow.engine))) < 200_000


def test_a_line_of_sys_log_is_clipped(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    block = builders.block(builders.log(message=builders.given("text")))
    document = builders.program(builders.workflow("W", "text", "", block))
    with (
        opened(database_url, settings=Settings(max_log_length=100)) as engine,
        caplog.at_level(logging.INFO, "flowengine"),
    ):
        engine.start(document, "W", {"text": "x" * 5_000})
    (line,) = [r.getMessage() for r in caplog.records if getattr(r, "action", "") == "sys.log"]
    assert len(line) == 100


def test_the_arguments_of_an_execute_message_are_limited(database_url: str) -> None:
    with opened(database_url, settings=Settings(max_execute_bytes=1_000)) as engine:
        launcher = EngineLauncher(engine)
        with pytest.raises(LimitReached, match=r"limits.endless.*1,000.*max_execute_bytes"):
            launcher.start_named("limits.endless", {"n": 1, "more": "x" * 2_000}, None)
        arguments: Any
        for arguments in ((["limits.endless"], {}, None), ("x", [1], None), ("x", {}, 5)):
            with pytest.raises(InvalidInputs):
                launcher.start_named(*arguments)
        assert launcher.start_named("limits.endless", {"n": 1}, "k").id


# --- waiting inside a step ---


@event_facet(name="limits.impatient")
def impatient(n: int) -> int:
    return one_more.start(n).result()


@event_facet(name="limits.patient")
def patient(n: int) -> int:
    run = one_more.start(n)
    if n:
        Flows.current.settle()
    return run.result(timeout=0)


class Flows:
    current: Flow


@workflow(name="limits.one_more")
def one_more(n: int) -> int:
    return inc(n)


@workflow(name="limits.waiting")
def waiting(n: int) -> int:
    return impatient(n)


@workflow(name="limits.looking")
def looking(n: int) -> int:
    return patient(n)


def test_waiting_for_a_run_inside_a_step_fails_at_once_with_the_cure(database_url: str) -> None:
    with flow_with(database_url) as flow:
        with pytest.raises(RunFailed, match="WaitInsideStep") as caught:
            flow.run(waiting, 1)
        for part in ("waiting.impatient", "return other.call(...)", "in the workflow"):
            assert part in caught.value.message
        (task,) = [t for t in flow.engine.tasks(caught.value.run_id) if t.state == "failed"]
        assert task.try_number == 1, "another try would wait as well"


def test_a_step_may_read_the_result_of_a_run_that_has_ended(database_url: str) -> None:
    with flow_with(database_url) as flow:
        Flows.current = flow
        assert flow.run(looking, 1) == 2

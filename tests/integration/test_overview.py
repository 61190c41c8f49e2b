"""Queries of the pages, on each database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flowengine import event_facet, foreach, when, workflow
from flowengine.engine import queries
from flowengine.engine.results import RunSummary
from flowengine.engine.run_tree import HiddenItems, RunTree, StepLine, load_run_tree
from flowengine.errors import UnknownRun
from flowengine.evaluator.states import StepState
from flowengine.testing import Flow


@event_facet
def weigh(thing: int) -> int:
    if thing < 0:
        raise ValueError("lighter than nothing")
    return thing


@workflow(name="overview.weigh_all")
def weigh_all(things: list[int]) -> list[int]:
    return foreach(things, lambda thing: weigh(thing))


@workflow(name="overview.rounds")
def rounds(left: int, last: int) -> int:
    weight = weigh(left)
    return when(weight > last, lambda: rounds(weight - 1, last), otherwise=lambda: weight)


@workflow(name="overview.weigh_one")
def weigh_one(thing: int) -> int:
    return weigh(thing)


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    with Flow(store_url=database_url) as flow:
        yield flow


def summaries(
    flow: Flow,
    *,
    workflow: str | None = None,
    state: str | None = None,
    before: str | None = None,
    limit: int = 10,
) -> list[RunSummary]:
    with flow.database.read() as session:
        return queries.run_summaries(
            session, workflow=workflow, state=state, before=before, limit=limit
        )


def run_tree(flow: Flow, run_id: str) -> RunTree:
    with flow.database.read() as session:
        return load_run_tree(session, run_id)


def test_pages_list_every_run_once_even_with_equal_start_times(flow: Flow) -> None:
    started = {flow.start(weigh_one, n).id for n in range(4)}  # the clock does not advance
    flow.settle()
    flow.clock.advance(seconds=1)
    newest = flow.start(weigh_one, 5).id
    seen: list[str] = []
    while page := summaries(flow, limit=2, before=seen[-1] if seen else None):
        seen += [run.id for run in page]
    assert seen[0] == newest
    assert sorted(seen) == sorted([newest, *started])


def test_a_summary_counts_the_ended_steps(flow: Flow) -> None:
    flow.start(weigh_all, [1, 2, 3])
    task = flow.worker("one").claim_next()
    assert task is not None
    flow.worker("one").work_on(task)
    (run,) = summaries(flow)
    assert (run.steps_ended, run.steps) == (1, 4), "three items and the foreach itself"
    flow.settle()
    (run,) = summaries(flow)
    assert (run.steps_ended, run.steps, run.state) == (4, 4, "COMPLETED")


def test_runs_are_filtered_by_state_and_by_a_part_of_their_name(flow: Flow) -> None:
    one = flow.start(weigh_one, -1).id
    flow.settle()
    flow.clock.advance(seconds=1)
    many = flow.start(weigh_all, [1]).id
    assert [run.id for run in summaries(flow, state="FAILED")] == [one]
    assert [run.id for run in summaries(flow, workflow="WEIGH_A")] == [many]
    assert [run.id for run in summaries(flow, workflow="weigh")] == [many, one]
    assert summaries(flow, workflow="weigh%") == []
    with pytest.raises(UnknownRun):
        summaries(flow, before="nobody")


def test_large_inputs_of_a_run_are_read_completely(flow: Flow) -> None:
    things = list(range(5000))  # more than a row stores inline
    run = flow.start(weigh_all, things).info()
    with flow.database.read() as session:
        assert queries.run_inputs(session, run) == {"things": things}


def test_a_run_tree_nests_each_step_under_its_parent(flow: Flow) -> None:
    run = flow.start(weigh_all, [1, -2])
    flow.settle()
    lines = [line for line in run_tree(flow, run.id).lines if isinstance(line, StepLine)]
    assert [(line.depth, line.name) for line in lines] == [
        (0, "weigh_all"),
        (1, "foreach"),
        (2, "[0].weigh"),
        (2, "[1].weigh"),
    ]
    assert [line.tries for line in lines] == [0, 0, 1, 1]
    failed = lines[-1]
    assert failed.error
    assert failed.error["message"] == "lighter than nothing"
    assert lines[0].error
    assert lines[0].error["path"] == failed.path


def test_a_wide_foreach_shows_only_its_first_and_its_failed_items(flow: Flow) -> None:
    run = flow.start(weigh_all, [-1 if n in (3, 190) else n for n in range(201)])
    flow.settle()
    found = run_tree(flow, run.id)
    items = [line for line in found.lines if line.depth == 2]
    rest = items.pop()
    assert isinstance(rest, HiddenItems)
    assert rest.counts == {StepState.COMPLETE: 150}
    names = [item.name for item in items if isinstance(item, StepLine)]
    assert names == [f"[{n}].weigh" for n in [*range(50), 190]]
    assert (found.steps_ended, found.steps) == (202, 202)


def test_a_foreach_of_two_hundred_items_is_shown_completely(flow: Flow) -> None:
    run = flow.start(weigh_all, list(range(200)))
    found = run_tree(flow, run.id)
    assert len(found.lines) == 2 + 200
    assert not found.is_cut


def test_a_loop_by_recursion_is_a_flat_list_of_rounds(flow: Flow) -> None:
    run = flow.start(rounds, 2, 0)
    flow.settle()
    lines = [line for line in run_tree(flow, run.id).lines if isinstance(line, StepLine)]
    assert [(line.depth, line.name, line.round) for line in lines] == [
        (0, "rounds", None),
        *[(1, "round 1", 1), (2, "weigh", None)],
        *[(1, "round 2", 2), (2, "weigh", None)],
        *[(1, "round 3", 3), (2, "weigh", None), (2, "when", None)],
        *[(3, "[case-0]", None), (3, "[default]", None)],
    ]


def test_of_many_rounds_a_page_shows_the_first_and_the_last(flow: Flow) -> None:
    run = flow.start(rounds, 58, -2)  # the sixtieth fails
    flow.settle()
    found = run_tree(flow, run.id)
    below = [line for line in found.lines if line.depth == 1]
    (rest,) = [line for line in below if isinstance(line, HiddenItems)]
    assert rest.kind == "rounds"
    assert rest.counts == {StepState.ERROR: 10}
    shown = [line for line in below if isinstance(line, StepLine)]
    assert [line.round for line in shown] == [*range(1, 11), *range(21, 61)]
    assert {line.failed_in for line in shown} == {60}
    assert not found.is_cut

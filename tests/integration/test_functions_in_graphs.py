"""A durable function is a step of a graph: in foreach, attempt, always and when."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from flowengine import (
    CaughtError,
    RunFailed,
    attempt,
    event_facet,
    foreach,
    gather,
    sleep,
    wait_for,
    when,
    workflow,
)
from flowengine.testing import Flow

made: list[str] = []


class Refused(Exception):
    pass


@event_facet(name="functions_in_graphs.note")
def note(text: str) -> str:
    made.append(text)
    if text == "bad":
        raise Refused("it is bad")
    return text


@workflow(name="functions_in_graphs.twice")
async def twice(text: str) -> str:
    await note(text)
    await sleep(60)
    return (await note(text)) * 2


@workflow(name="functions_in_graphs.each")
def each(texts: list[str]) -> list[str]:
    return foreach(texts, lambda text: twice(text), limit=2)


@workflow(name="functions_in_graphs.answered")
async def answered(name: str) -> str:
    try:
        return await wait_for(name, str)
    finally:
        await note("finally")


@workflow(name="functions_in_graphs.guarded")
def guarded(name: str) -> str:
    return attempt(lambda: answered(name), always=lambda: twice("always"))


@workflow(name="functions_in_graphs.collected")
def collected(texts: list[str]) -> list[str]:
    found = foreach(texts, lambda text: twice(text), collect_errors=True)
    return found.results


@workflow(name="functions_in_graphs.caught")
def caught(text: str) -> str:
    def told(error: CaughtError) -> str:
        return error.message

    return attempt(lambda: twice(text), catch=told, always=lambda: twice("always"))


@workflow(name="functions_in_graphs.chosen")
def chosen(text: str) -> str:
    first = note(text)
    return when(first == "yes", lambda: twice.named("choice")(first), otherwise="no")


@workflow(name="functions_in_graphs.limited")
def limited(text: str) -> str:
    return attempt(lambda: twice.within(5)(text), catch=lambda error: error.type)


@workflow(name="functions_in_graphs.ordered")
def ordered(text: str) -> str:
    first = twice(text)
    return note.after(first)("last")


@workflow(name="functions_in_graphs.children")
async def children(texts: list[str]) -> list[list[str]]:
    async with asyncio.TaskGroup() as group:
        first = group.create_task(each.acall(texts))
    return [first.result(), await gather(*(twice.acall(text) for text in texts))]


@pytest.fixture
def flow() -> Iterator[Flow]:
    made.clear()
    with Flow() as flow:
        yield flow


def test_in_a_foreach_each_item_is_a_function(flow: Flow) -> None:
    assert flow.run(each, ["a", "b", "c"]) == ["aa", "bb", "cc"]
    assert sorted(made) == ["a", "a", "b", "b", "c", "c"]


def test_a_failed_function_is_an_error_of_its_item(flow: Flow) -> None:
    assert flow.run(collected, ["a", "bad", "c"]) == ["aa", "cc"]
    with pytest.raises(RunFailed, match=r"each.foreach\[1\].twice.note#0: Refused: it is bad"):
        flow.run(each, ["a", "bad"])


def test_attempt_catches_the_error_of_a_function_and_always_runs_one(flow: Flow) -> None:
    assert flow.run(caught, "bad") == "it is bad"
    assert made == ["bad", "always", "always"]
    made.clear()
    assert flow.run(caught, "good") == "goodgood"
    assert made == ["good", "good", "always", "always"]


def test_a_cancelled_function_ends_where_it_waits_and_always_runs(flow: Flow) -> None:
    run = flow.start(guarded, "answer")
    flow.settle()
    run.cancel()
    flow.settle()
    flow.clock.advance(seconds=60)
    flow.watchdog()
    flow.settle()
    assert run.state == "CANCELLED"
    assert made == ["always", "always"]


def test_a_branch_calls_a_function_by_the_name_of_its_step(flow: Flow) -> None:
    run = flow.start(chosen, "yes")
    flow.settle()
    assert "chosen.when[case-0].choice.note#0" in flow.paths(run)
    assert flow.run(chosen, "yes") == "yesyes"
    assert flow.run(chosen, "other") == "no"


def test_the_deadline_of_a_step_ends_a_function_that_sleeps(flow: Flow) -> None:
    assert flow.run(limited, "a") == "DeadlineExceeded"
    assert made == ["a"]


def test_a_step_after_a_function_waits_for_its_end(flow: Flow) -> None:
    assert flow.run(ordered, "a") == "last"
    assert made == ["a", "a", "last"]


def test_a_function_awaits_graphs_and_functions_side_by_side(flow: Flow) -> None:
    assert flow.run(children, ["a", "b"]) == [["aa", "bb"], ["aa", "bb"]]
    workflows = sorted(info.workflow.rpartition(".")[2] for info in flow.engine.list())
    assert workflows == ["children", "each", "twice", "twice"]

"""The page of a run shows the calls of durable functions as steps, long lists folded."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from flowengine import event_facet, gather, sleep, wait_for, workflow
from flowengine.engine.run_tree import HiddenItems, StepLine, load_run_tree
from flowengine.evaluator.states import StepState
from flowengine.testing import Flow
from flowengine.web import styles


@event_facet(name="function_pages.weigh")
def weigh(n: int) -> int:
    if n == 60:
        raise ValueError("too heavy")
    return n


async def weighed(n: int) -> int:
    try:
        return int(await weigh(n))
    except ValueError:
        return 0


@workflow(name="function_pages.many")
async def many(count: int) -> int:
    total = sum(await gather(*(weighed(n) for n in range(count))))
    await sleep(timedelta(days=1))
    return total


@workflow(name="function_pages.asks")
async def asks() -> str:
    first, second = await gather(wait_for.acall("size", str), wait_for.acall("colour", str))
    return first + second


@pytest.fixture
def flow() -> Iterator[Flow]:
    with Flow() as flow:
        yield flow


def lines_of(flow: Flow, run_id: str) -> list[StepLine | HiddenItems]:
    with flow.database.read() as session:
        return list(load_run_tree(session, run_id).lines)


def test_a_suspended_function_says_for_which_calls_it_waits(flow: Flow) -> None:
    run = flow.start(asks)
    flow.settle()
    root, function, *calls = lines_of(flow, run.id)
    assert isinstance(root, StepLine)
    assert isinstance(function, StepLine)
    assert function.awaited == ["wait_for#0", "wait_for#1"]
    label = styles.step_label(function, flow.clock.now)[2]
    assert label == "waits for wait_for#0 and 1 more call"
    labels = [styles.step_label(call, flow.clock.now)[2] for call in calls if is_step(call)]
    assert labels == ["waits for the answer 'size'", "waits for the answer 'colour'"]


def is_step(line: StepLine | HiddenItems) -> bool:
    return isinstance(line, StepLine)


def test_of_many_calls_the_first_the_last_and_the_failed_are_shown(flow: Flow) -> None:
    run = flow.start(many, 170)
    flow.settle()
    below = [line for line in lines_of(flow, run.id) if line.depth == 2]
    names = [line.name for line in below if isinstance(line, StepLine)]
    numbers = [*range(50), 60, *range(71, 171)]
    assert names == [f"weigh#{n}" for n in numbers[:-1]] + ["sleep#170"]
    hidden = [line for line in below if isinstance(line, HiddenItems)]
    assert [line.counts for line in hidden] == [
        {StepState.COMPLETE: 10},
        {StepState.COMPLETE: 10},
    ]
    assert styles.hidden_items_label(hidden[0]) == "10 more calls: 10 complete"
    (wait,) = [info.waits_for for info in flow.engine.list()]
    assert wait is not None
    assert wait.kind == "time"

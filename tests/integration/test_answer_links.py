"""A signed link belongs to one wait of a run: a later wait for the same name wants another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from flowengine import WaitTimedOut, wait_for, workflow
from flowengine.engine import Run
from flowengine.errors import AnswerRefused
from flowengine.settings import Settings
from flowengine.testing import Flow

KEYS = "k" * 40


@workflow
async def budgets(n: int) -> list[int]:
    approved = []
    for _ in range(n):
        approved.append(await wait_for("approve", int))
    return approved


@workflow
async def patient() -> list[int]:
    with suppress(WaitTimedOut):
        await wait_for("approve", int, timeout=60)
    return [await wait_for("approve", int)]


@pytest.fixture
def flow() -> Iterator[Flow]:
    with Flow(settings=Settings(link_keys=KEYS)) as flow:
        yield flow


def use(flow: Flow, link: str, value: Any = None) -> None:
    flow.engine.send_link(link, value)
    flow.settle()


def refused(flow: Flow, link: str, says: str) -> None:
    with pytest.raises(AnswerRefused, match=says):
        use(flow, link)


def test_a_link_approves_one_wait_and_none_of_the_next(flow: Flow) -> None:
    run = flow.start(budgets, 3)
    flow.settle()
    first = run.answer_link("approve", 10)
    use(flow, first)
    refused(flow, first, "for wait 1 .* the run is at wait 2: ask for a new link")
    second, also_second = run.answer_link("approve", 20), run.answer_link("approve", 21)
    use(flow, also_second)
    refused(flow, second, "is at wait 3")
    refused(flow, first, "is at wait 3")
    run.send("approve", 30)
    flow.settle()
    assert run.result(timeout=0) == [10, 21, 30]


def test_a_link_that_was_made_before_the_run_waits_is_for_the_first_wait(flow: Flow) -> None:
    run = flow.start(budgets, 2)
    early = run.answer_link("approve", 10)
    use(flow, early)
    refused(flow, early, "is at wait 2|has an answer|was answered")
    use(flow, run.answer_link("approve", 20))
    assert run.result(timeout=0) == [10, 20]


def test_an_early_answer_by_a_link_is_kept_and_spends_it(flow: Flow) -> None:
    run = flow.start(budgets, 2)
    link, other = run.answer_link("approve", 10), run.answer_link("approve", 11)
    flow.engine.send_link(link)
    for spent in (link, other):
        with pytest.raises(AnswerRefused):
            flow.engine.send_link(spent)
    behind = run.answer_link("approve", 20)
    flow.settle()
    refused(flow, other, "is at wait 2")
    use(flow, behind)
    assert run.result(timeout=0) == [10, 20]


def test_a_link_of_a_wait_that_timed_out_answers_no_later_one(flow: Flow) -> None:
    run = flow.start(patient)
    flow.settle()
    link = run.answer_link("approve", 10)
    flow.clock.advance(seconds=61)
    flow.watchdog()
    flow.settle()
    refused(flow, link, "for wait 1 .* is at wait 2")
    use(flow, run.answer_link("approve", 20))
    assert run.result(timeout=0) == [20]


def test_answers_without_a_link_are_for_any_wait(flow: Flow) -> None:
    run: Run[list[int]] = flow.start(budgets, 2)
    for value in (1, 2):
        flow.settle()
        run.send("approve", value)
    flow.settle()
    assert run.result(timeout=0) == [1, 2]

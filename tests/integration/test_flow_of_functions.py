"""Flow runs durable functions: each activation is a strict replay, and the clock is the test's."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from flowengine import (
    Divergence,
    RunFailed,
    StepFailed,
    event_facet,
    foreach,
    gather,
    now,
    sleep,
    step,
    uuid,
    wait_for,
    workflow,
)
from flowengine.testing import Flow, replay

counter = itertools.count()
asked: list[str] = []


class Refused(Exception):
    pass


@event_facet
def ask(question: str) -> str:
    asked.append(question)
    if question == "secret":
        raise Refused("nobody says that")
    return f"{question}!"


def shouted(text: str) -> str:
    return text.upper()


@workflow
async def talk(question: str) -> list[str]:
    key, began = uuid(), now()
    answers = [await ask(question)]
    await sleep(timedelta(days=2))
    answers += await gather(*(ask(f"{question} {n}") for n in range(3)))
    try:
        await ask("secret")
    except Refused as problem:
        answers.append(str(problem))
    answers.append(await step(shouted, "end"))
    assert now() - began >= timedelta(days=2)
    assert key != uuid()
    return answers


@workflow
async def sleeper(hours: int) -> str:
    return str(await sleep(timedelta(hours=hours)))


@workflow
async def parent(hours: int) -> list[Any]:
    return [await sleeper(hours), await survey([1, 2])]


@workflow
def survey(numbers: list[int]) -> list[str]:
    return foreach(numbers, lambda n: counted(n))


@workflow
async def counted(n: int) -> str:
    return await ask(f"number {n}")


@workflow(run=True)
def plain(question: str) -> str:
    answer = ask(question)
    sleep(3600)
    return ask(answer)


@workflow
async def impatient(question: str) -> str:
    try:
        async with asyncio.timeout(60):
            return await wait_for("answer", str)
    except TimeoutError:
        return await ask(question)


@workflow
async def unsteady(question: str) -> str:
    await ask(f"{question} {next(counter)}")
    return await ask("again")


@workflow
async def forgetful() -> str:
    if next(counter) % 2 == 0:
        await ask("first")
    return await step(shouted, "x")


@workflow
async def failing() -> str:
    return await ask("secret")


@workflow
async def unanswered(name: str) -> str:
    return await wait_for(name, str, timeout=60)


@pytest.fixture
def flow() -> Iterator[Flow]:
    asked.clear()
    with Flow() as flow:
        yield flow


def test_a_function_runs_to_its_end_and_its_sleeps_pass_with_the_clock(flow: Flow) -> None:
    before = flow.clock.now
    assert flow.run(talk, "why") == [
        *("why!", "why 0!", "why 1!", "why 2!"),
        *("nobody says that", "END"),
    ]
    assert flow.clock.now - before == 2 * 86_400_000
    assert asked == ["why", "why 0", "why 1", "why 2", "secret"]  # each once


def test_a_function_awaits_functions_and_graphs_as_runs_of_their_own(flow: Flow) -> None:
    slept, told = flow.run(parent, 5)
    assert slept.startswith("2023-11-15 03:13:20")
    assert told == ["number 1!", "number 2!"]
    assert sorted(info.workflow.rpartition(".")[2] for info in flow.engine.list()) == [
        "parent",
        "sleeper",
        "survey",
    ]


def test_a_function_in_a_graph_is_a_step_of_each_item(flow: Flow) -> None:
    run = flow.start(survey, [1, 2])
    flow.settle()
    paths = [path for path in flow.paths(run) if "counted" in path]
    assert sorted(paths) == [
        "survey.foreach[0].counted",
        "survey.foreach[0].counted.ask#0",
        "survey.foreach[1].counted",
        "survey.foreach[1].counted.ask#0",
    ]


def test_a_plain_function_runs_without_await(flow: Flow) -> None:
    assert flow.run(plain, "why") == "why!!"


def test_a_timeout_passes_with_the_clock_and_an_answer_ends_the_wait(flow: Flow) -> None:
    assert flow.run(impatient, "why") == "why!"
    run = flow.start(impatient, "why")
    flow.settle()
    run.send("answer", "because")
    flow.settle()
    assert run.result(timeout=0) == "because"


def test_an_answer_that_does_not_come_names_the_python_to_write(flow: Flow) -> None:
    with pytest.raises(RunFailed, match="within 60 s; `except WaitTimedOut` goes on"):
        flow.run(unanswered, "answer")


def test_arguments_that_differ_in_a_replay_fail_the_test(flow: Flow) -> None:
    with pytest.raises(Divergence, match="gives it other arguments"):
        flow.run(unsteady, "why")


def test_a_call_that_a_replay_does_not_make_fails_the_test(flow: Flow) -> None:
    next(counter) if next(counter) % 2 == 0 else None
    with pytest.raises(Divergence, match=r"call 0: the record has .*ask, the code"):
        flow.run(forgetful)


def test_the_error_of_a_call_is_that_of_the_run(flow: Flow) -> None:
    with pytest.raises(RunFailed, match=r"failing.failing.ask#0: Refused: nobody says that"):
        flow.run(failing)
    assert issubclass(StepFailed, Exception)


def test_a_worker_that_dies_in_an_activation_is_replaced(flow: Flow) -> None:
    run = flow.start(counted, 1)
    worker = flow.worker("marie")
    worker.claim(run, "counted")
    worker.die()
    flow.watchdog()
    flow.settle()
    assert run.result(timeout=0) == "number 1!"


def test_the_exports_of_functions_are_evaluated_to_the_same_decisions(flow: Flow) -> None:
    for body, given in ((talk, "why"), (parent, 5), (impatient, "x"), (survey, [1, 2])):
        flow.run(body, given)
    run = flow.start(counted, 1)
    for name in ("marie", "paul"):  # two losses: they are counted anew after progress
        worker = flow.worker(name)
        worker.claim(run, "counted")
        worker.die()
        flow.watchdog()
    flow.settle()
    infos = flow.engine.list()
    assert len(infos) == 7
    for info in infos:
        assert replay(flow.engine.export(info.id)).check().state == "COMPLETED"

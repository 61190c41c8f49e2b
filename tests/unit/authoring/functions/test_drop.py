"""A dropped activation: its `finally` blocks run, make no calls, and nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest

from flowengine import event_facet
from flowengine.authoring.functions import Activation, acall, activation, gather, sleep
from flowengine.program.function_calls import Progress
from tests.unit.authoring.functions.recorded import Recorded

effects: list[str] = []


@event_facet
def work(text: str) -> str:
    effects.append(text)  # it must never run here
    return text


@pytest.fixture(autouse=True)
def _no_effects(caplog: pytest.LogCaptureFixture) -> Any:
    effects.clear()
    yield
    gc.collect()  # finds coroutines that were left
    assert effects == []
    assert caplog.records == []


def test_a_finally_block_that_awaits_makes_no_call_when_its_function_is_dropped() -> None:
    seen = []

    async def body() -> str:
        try:
            await acall(work, "first")
        finally:
            seen.append("inner")
            try:
                await acall(work, "cleanup")
            finally:
                seen.append("outer")
        return "done"

    run = Recorded(body)
    run.activation.drop()
    assert seen == ["inner", "outer"]
    assert run.drop_and_replay() == Progress()
    run.end(0, "first")
    assert run.facets == ["work", "work"]
    run.end(1, "cleanup")
    assert run.result == "done"


@pytest.mark.parametrize("how", ["sleep0", "timer", "task", "group", "gather", "event", "call"])
def test_every_kind_of_wait_in_a_finally_block_is_refused_silently(how: str) -> None:
    ended = []

    async def wait() -> None:
        match how:
            case "sleep0":
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            case "timer":
                await asyncio.sleep(5)
            case "task":
                await asyncio.create_task(acall(work, "x"))
            case "group":
                async with asyncio.TaskGroup() as group:
                    group.create_task(acall(work, "x"))
            case "gather":
                await gather(acall(work, "x"), acall(work, "y"))
            case "event":
                await asyncio.Event().wait()
            case "call":
                acall(work, "x")

    async def body() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(acall(work, "a"))
                await sleep(60)
        finally:
            try:
                await wait()
            finally:
                ended.append(how)

    run = Recorded(body)
    run.activation.drop()
    assert ended == [how]


def test_nested_coroutines_whose_finally_blocks_wait_end_from_the_inside() -> None:
    ended = []

    async def inner(name: str) -> None:
        try:
            await acall(work, name)
        finally:
            for _ in range(3):
                with contextlib.suppress(BaseException):
                    await acall(work, "inner")
            ended.append(name)
            await asyncio.sleep(0)
            await acall(work, "inner")

    async def outer(name: str) -> None:
        try:
            await inner(name)
        finally:
            await inner(f"{name} again")

    async def body() -> None:
        await asyncio.gather(outer("a"), outer("b"))

    Recorded(body).activation.drop()
    assert ended == ["a", "a again", "b", "b again"]


def test_tasks_context_managers_and_generators_are_closed() -> None:
    closed = []

    @contextlib.asynccontextmanager
    async def resource(name: str) -> AsyncIterator[str]:
        try:
            yield name
        finally:
            closed.append(name)
            await acall(work, name)

    async def items() -> AsyncIterator[str]:
        try:
            yield await acall(work, "item")
        finally:
            closed.append("items")

    async def use(name: str) -> None:
        async with resource(name):
            await acall(work, name)

    async def body() -> None:
        kept = items()
        async for _ in kept:
            await asyncio.gather(use("a"), use("b"))

    run = Recorded(body)
    run.end(0, "item")
    run.activation.drop()
    assert sorted(closed) == ["a", "b", "items"]


def test_code_that_catches_even_the_close_is_given_up() -> None:
    rounds, goes_on = [], [True]

    async def body() -> None:
        while goes_on:
            rounds.append(1)
            with contextlib.suppress(BaseException):
                await acall(work, "again")

    run = Recorded(body)
    run.activation.drop()
    assert len(rounds) < 5_000
    goes_on.clear()  # Python closes the coroutine once more when the process ends


def test_an_error_in_a_finally_block_of_a_dropped_function_is_silent() -> None:
    async def body() -> None:
        try:
            await acall(work, "x")
        finally:
            raise ValueError("in the cleanup")

    Recorded(body).activation.drop()


def test_a_dropped_activation_cannot_go_on() -> None:
    async def body() -> str:
        return await acall(work, "x")

    run = Recorded(body)
    run.activation.drop()
    run.activation.drop()
    with pytest.raises(RuntimeError, match="was dropped: make a new one"):
        run.activation.advance()


def test_nothing_keeps_a_dropped_or_ended_activation() -> None:
    async def body() -> str:
        async with asyncio.timeout(5):
            return await acall(work, "x")

    run = Recorded(body)
    dropped = weakref.ref(run.activation)
    run.drop_and_replay()
    ended = weakref.ref(run.activation)
    run.end(0, "x")
    del run
    gc.collect()
    assert (dropped(), ended()) == (None, None)


def test_an_activation_that_is_forgotten_is_kept_until_the_process_ends() -> None:
    async def body() -> None:
        try:
            await acall(work, "x")
        finally:
            await acall(work, "cleanup")

    forgotten = weakref.ref(Recorded(body).activation)
    gc.collect()
    kept = forgotten()
    assert isinstance(kept, Activation)
    kept.drop()


def test_the_end_of_a_process_closes_kept_functions_before_python_does() -> None:
    closed = []

    async def body() -> None:
        try:
            await acall(work, "x")
        finally:
            closed.append(1)
            await acall(work, "cleanup")

    kept = [Recorded(body).activation for _ in range(3)]
    activation._drop_all()  # registered with atexit
    assert [one.is_dropped for one in kept] == [True] * 3
    assert len(closed) == 3

"""The loop: asyncio works in it, and what no replay could repeat is refused with a cure."""

from __future__ import annotations

import asyncio
import concurrent.futures
import re
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowengine import event_facet
from flowengine.authoring.functions import acall, gather, sleep
from tests.unit.authoring.functions.recorded import START, Recorded


@event_facet
def double(n: int) -> int:
    return 2 * n


@event_facet
def other(n: int) -> int:
    return n


def twice(call: Any) -> int:
    return int(call.arguments["n"]) * 2


async def helper(n: int) -> int:
    return await acall(double, n)


def test_gather_of_asyncio_makes_calls_in_the_order_of_its_arguments() -> None:
    async def body() -> list[int]:
        return list(await asyncio.gather(acall(double, 1), helper(2), acall(other, 3)))

    run = Recorded(body)
    assert run.facets == ["double", "double", "other"]
    run.end(2, 30)
    run.end(0, 10)
    run.end(1, 20)
    assert run.result == [10, 20, 30]
    assert run.progress.heard == (2, 0, 1)


def test_a_task_group_cancels_its_other_calls_when_one_fails() -> None:
    async def body() -> list[str]:
        found = []
        try:
            async with asyncio.TaskGroup() as group:
                for n in range(4):
                    group.create_task(acall(double, n))
        except* ValueError as problems:
            found = [str(one) for one in problems.exceptions]
        return found

    run = Recorded(body)
    run.end(2, error={"type": "ValueError", "message": "no", "path": "p"})
    assert run.result == ["no"]
    assert run.cancelled == {0, 1, 3}


def test_the_error_of_a_task_group_names_those_in_it() -> None:
    async def body() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(acall(double, 1))

    run = Recorded(body)
    run.end(0, error={"type": "OutOfStock", "message": "no pens", "path": "p"})
    assert run.error["message"].endswith("(1 sub-exception): OutOfStock: no pens")


def test_a_timeout_is_a_call_with_a_due_time_that_cancels_the_call_it_encloses() -> None:
    async def body() -> str:
        try:
            async with asyncio.timeout(600):
                await acall(double, 1)
        except TimeoutError:
            return "late"
        return "in time"

    run = Recorded(body)
    assert run.facets == ["double", "sleep"]
    assert run.calls[1].due == START + 600_000
    assert run.calls[1].arguments == {"seconds": 600.0}
    run.end(1, after=601)
    assert (run.result, run.cancelled) == ("late", {0})

    run = Recorded(body)
    run.end(0, 2)
    assert (run.result, run.cancelled) == ("in time", {1})


def test_a_timer_that_is_over_before_anything_waits_has_no_call() -> None:
    async def body() -> int:
        async with asyncio.timeout(5):
            await asyncio.sleep(0)
        return await acall(double, 1)

    assert Recorded(body).facets == ["double"]


def test_wait_returns_sets_in_the_same_order_in_every_process() -> None:
    async def body() -> list[int]:
        tasks = {asyncio.create_task(acall(double, n)) for n in range(20)}
        found: list[int] = []
        while tasks:
            done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            found += [await task for task in done]
            for task in tasks:  # the order of a set
                found.append(await acall(other, int(task.get_name().partition("-")[2])))
                break
        return found

    def order() -> list[Any]:
        run = Recorded(body)
        run.end_all(twice)
        return [run.result, [call.arguments for call in run.calls]]

    first = order()
    noise = [asyncio.Future for _ in range(1000)], object()  # other addresses
    assert order() == first, noise


def test_semaphore_queue_event_and_lock_work() -> None:
    async def body() -> list[int]:
        semaphore, queue, found = asyncio.Semaphore(2), asyncio.Queue[int](3), list[int]()

        async def produce() -> None:
            for n in range(5):
                async with semaphore:
                    await queue.put(await acall(double, n))

        async def consume() -> None:
            while len(found) < 5:
                found.append(await queue.get())

        await asyncio.gather(consume(), produce())
        return found

    assert Recorded(body).end_all(twice).ended.result == [0, 2, 4, 6, 8]  # type: ignore[union-attr]


def test_wait_for_of_asyncio_and_sleep_of_both_modules_are_timers() -> None:
    async def body() -> int:
        await asyncio.sleep(5)
        await sleep(7)
        return await asyncio.wait_for(acall(double, 4), 60)

    run = Recorded(body)
    assert run.calls[0].due == START + 5_000
    run.end(0, after=6)
    assert run.calls[1].due == START + 13_000
    run.end(1, after=7)
    assert run.facets == ["sleep", "sleep", "double", "sleep"]
    run.end(2, 8)
    assert run.result == 8


def test_the_time_of_the_loop_is_that_of_the_last_end() -> None:
    async def body() -> list[float]:
        loop = asyncio.get_running_loop()
        before = loop.time()
        await acall(double, 1)
        return [before, loop.time()]

    run = Recorded(body)
    run.end(0, 2, after=100)
    assert run.result == [START / 1000, START / 1000 + 100]


def test_at_most_limit_calls_of_gather_are_open() -> None:
    async def body() -> list[int]:
        return await gather(*(acall(double, n) for n in range(9)), limit=3)

    run = Recorded(body)
    most = 0
    while run.progress.ended is None:
        most = max(most, len(run.open))
        run.end(run.open[-1].number, twice(run.open[-1]))
    assert (run.result, most) == ([0, 2, 4, 6, 8, 10, 12, 14, 16], 3)


def test_calls_of_an_unlimited_gather_are_a_group() -> None:
    async def body() -> list[int]:
        await acall(double, 0)
        return await gather(*(acall(double, n) for n in range(8)))

    run = Recorded(body)
    run.end(0, 0)
    assert {call.group for call in run.calls[1:]} == {1}
    assert run.end_all(twice).ended.result == [0, 2, 4, 6, 8, 10, 12, 14]  # type: ignore[union-attr]


def test_after_an_error_a_limited_gather_makes_no_further_call() -> None:
    async def body() -> str:
        try:
            await gather(*(acall(double, n) for n in range(9)), limit=2)
        except ValueError:
            return await acall(other, 1) and "caught"
        return "no error"

    run = Recorded(body)
    run.end(1, error={"type": "ValueError", "message": "no", "path": ""})
    assert run.facets == ["double", "double", "other"]
    run.end(2, 1)
    assert run.result == "caught"
    assert run.cancelled == {0}


def test_a_cancelled_gather_cancels_its_open_calls() -> None:
    async def body() -> int:
        try:
            async with asyncio.timeout(5):
                await gather(*(acall(double, n) for n in range(9)), limit=2)
        except TimeoutError:
            return 1
        return 2

    run = Recorded(body)
    run.end(2)
    assert (run.result, run.cancelled) == (1, {0, 1})


def test_an_asynchronous_generator_and_context_manager_of_the_author_work() -> None:
    async def numbers() -> Any:
        try:
            for n in range(10):
                yield await acall(double, n)
        finally:
            await acall(other, 9)

    async def body() -> list[int]:
        found = []
        async for n in numbers():
            found.append(n)
            if n == 4:
                break
        await acall(other, 1)
        return found

    run = Recorded(body)
    run.end_all(twice)
    assert run.result == [0, 2, 4]
    assert run.facets == ["double"] * 3 + ["other", "other"]
    assert run.drop_and_replay().ended == run.progress.ended


async def _thread() -> Any:
    await asyncio.to_thread(print)


async def _executor() -> Any:
    with concurrent.futures.ThreadPoolExecutor() as pool:
        await asyncio.get_running_loop().run_in_executor(pool, print)


async def _socket() -> Any:
    await asyncio.open_connection("localhost", 1)


async def _signal() -> Any:
    asyncio.get_running_loop().add_signal_handler(10, print)


async def _process() -> Any:
    await asyncio.create_subprocess_exec("true")


async def _run() -> Any:
    asyncio.run(helper(1))


async def _other_loop() -> Any:
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(helper(1))
    finally:
        loop.close()


async def _foreign_future() -> Any:
    loop = asyncio.new_event_loop()
    try:
        await loop.create_future()
    finally:
        loop.close()


async def _odd_awaitable() -> Any:
    class Odd:
        def __await__(self) -> Any:
            yield 5

    await Odd()


async def _nothing() -> Any:
    await asyncio.Event().wait()


async def _future_of_a_thread() -> Any:
    await asyncio.wrap_future(concurrent.futures.Future[int]())


async def _spinning() -> Any:
    while True:
        await asyncio.sleep(0)


async def _set_of_coroutines() -> Any:
    for one in asyncio.as_completed([helper(1), helper(2)]):
        await one


async def _long_sleep() -> Any:
    await asyncio.sleep(1e12)


async def _exit() -> Any:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (_thread, "run_in_executor uses threads, .*: do it in an event facet.*step"),
        (_executor, "run_in_executor uses threads"),
        (_socket, "loop.create_connection does input or output, .*: do it in an event facet"),
        (_signal, "add_signal_handler handles signals, .*wait_for"),
        (_process, "loop.* subprocess|starts a process|does input or output"),
        (_run, "await the coroutine"),
        (_other_loop, "await the coroutine"),
        (_foreign_future, "future of another loop.*do it in an event facet"),
        (_odd_awaitable, "neither a call nor of asyncio"),
        (_nothing, "waits for something that no call ends"),
        (_future_of_a_thread, "waits for something that no call ends"),
        (_spinning, "without awaiting a call, 1,000 times: await a call"),
        (_set_of_coroutines, r"as_completed\(\[asyncio.create_task"),
        (_long_sleep, "a sleep is a number of seconds from 0 to"),
    ],
)
def test_a_body_that_no_replay_could_repeat_fails_with_its_line_and_a_cure(
    body: Callable[[], Awaitable[Any]], words: str
) -> None:
    before = set(threading.enumerate())
    run = Recorded(body)
    assert re.search(words, run.error["message"], re.DOTALL), run.error["message"]
    assert run.error["type"] == "FunctionMisuse"
    first = body.__code__.co_firstlineno  # type: ignore[attr-defined]
    line = int(re.match(r".*?test_loop\.py:(\d+)", run.error["message"])[1])  # type: ignore[index]
    assert first < line < first + 9
    started = {thread.name for thread in threading.enumerate() if thread not in before}
    assert not [name for name in started if "asyncio" in name or "Executor" in name]


def test_an_exit_ends_the_function_and_not_the_process() -> None:
    assert Recorded(_exit).error["type"] == "SystemExit"

"""Durable functions and the facets they call, for the tests of this folder."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

from flowengine import event_facet, foreach, gather, sleep, step, wait_for, workflow
from flowengine.program.event_options import RetryPolicy

made: list[Any] = []  #: the arguments of the facets that were run, in order


class Refused(Exception):
    """An error of a facet, known to the function."""


@event_facet
def double(n: int) -> int:
    made.append(n)
    return 2 * n


@event_facet
def refuse(n: int) -> int:
    made.append(n)
    raise Refused(f"no {n}")


@event_facet(retry=RetryPolicy(attempts=3, first_wait=0.0))
def third_time(n: int) -> int:
    made.append(n)
    if made.count(n) % 3:
        raise Refused(f"not yet {n}")
    return n


@event_facet(effects=False)
def look(n: int) -> int:
    made.append(n)
    return n + 1


@event_facet
def spoil(items: list[int]) -> list[int]:
    """Change its argument."""
    items.append(99)
    return items


def plain(n: int) -> int:
    made.append(n)
    if n < 0:
        raise Refused(f"below zero: {n}")
    return n + 1


@event_facet
def goes_on(n: int) -> int:
    made.append(n)
    return graph.call(n)


@workflow
async def looks(count: int) -> int:
    n = 0
    for _ in range(count):
        n = await look(n)
    return await double(n)


@workflow
async def steps(n: int) -> int:
    first, second = await gather(double(n), step(plain, n))
    return first + second + await step(plain, n)


@workflow
async def failing_step(n: int) -> str:
    try:
        return str(await step(plain, -n))
    except Refused as problem:
        return str(problem)


@workflow
async def unspoiled(n: int) -> list[list[int]]:
    items = [n]
    return [await spoil(items), items]


@workflow
async def delegated(n: int) -> int:
    return await goes_on(n)


@workflow
async def chain(count: int) -> int:
    n = 1
    for _ in range(count):
        n = await double(n) - n + 1
    return n


@workflow
async def wide(count: int) -> list[int]:
    return await gather(*(double(n) for n in range(count)))


@workflow
async def caught(n: int) -> str:
    try:
        return str(await refuse(n))
    except Refused as problem:
        return f"{problem}; {await double(n)}"


@workflow
async def uncaught(n: int) -> int:
    await double(n)
    return await refuse(n)


@workflow
async def patient(n: int) -> int:
    return await third_time(n)


@workflow
async def naps(seconds: float) -> datetime:
    await double(1)
    return await sleep(timedelta(seconds=seconds))


@workflow
async def asks(name: str) -> str:
    try:
        async with asyncio.timeout(60):
            return await wait_for(name, str)
    except TimeoutError:
        return "nobody"


@workflow
async def races(n: int) -> int:
    tasks = [asyncio.create_task(one) for one in (double(n), double(n + 1))]
    done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    return sum(task.result() for task in done)


@workflow
def graph(n: int) -> int:
    return double(double(n))


@workflow
async def outer(n: int) -> int:
    return await graph(n) + await chain(2)


@workflow
async def fails_below(n: int) -> str:
    try:
        return str(await uncaught(n))
    except Refused as problem:
        return f"told: {problem}"


@workflow
def survey(ns: list[int]) -> list[str]:
    return foreach(ns, lambda n: caught(n))

"""A durable function for worker processes that are killed."""

from __future__ import annotations

import asyncio
import time

from flowengine import event_facet, gather, sleep, step, workflow

WIDTH = 10
CALLS = 4 + WIDTH + 2 + 1 + 1  #: of one function: loop, gather, race, failure, plain function


class Refused(Exception):
    """An error that the function knows."""


# No limit of losses: the tests decide how often workers are killed.
@event_facet(max_losses=1000)
def add(a: int, b: int) -> int:
    return a + b


@event_facet(max_losses=1000, effects=False)
def square(n: int) -> int:
    return n * n


@event_facet(max_losses=1000)
def slow(n: int) -> int:
    time.sleep(0.01)
    return n


@event_facet(max_losses=1000)
def refuse(n: int) -> int:
    raise Refused(str(n))


def plus_one(n: int) -> int:
    return n + 1


@workflow
async def travels(n: int) -> int:
    total = n
    for number in range(4):
        total = await add(total, number)
    total += sum(await gather(*(square(number) for number in range(WIDTH))))
    racers = [asyncio.create_task(one) for one in (slow(n), sleep(86_400))]
    done, others = await asyncio.wait(racers, return_when=asyncio.FIRST_COMPLETED)
    for other in others:
        other.cancel()
    total += len(done)
    try:
        await refuse(n)
    except Refused as problem:
        total += int(str(problem))
    return await step(plus_one, total)


def expected(n: int) -> int:
    """The result of `travels`."""
    return 2 * n + 6 + sum(number * number for number in range(WIDTH)) + 1 + 1

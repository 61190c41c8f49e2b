"""The workloads as PyWorkflow's users write them."""

from __future__ import annotations

import asyncio

from pyworkflow import step, workflow


@step()
async def same(x: int) -> int:
    return x


@step()
async def add(x: int, y: int) -> int:
    return x + y


@step()
async def add_up(xs: list[int]) -> int:
    return sum(xs)


@workflow(durable=True)
async def fan_out(size: int) -> int:
    return await add_up(list(await asyncio.gather(*(same(item) for item in range(size)))))


@workflow(durable=True)
async def chain(size: int) -> int:
    x = 0
    for _ in range(size):
        x = await add(x, 1)
    return x


@workflow(durable=True)
async def small(x: int) -> int:
    for _ in range(3):
        x = await add(x, 1)
    return await add_up(list(await asyncio.gather(*(add(x, y) for y in range(4)))))

"""The workloads as Prefect's users write them."""

from __future__ import annotations

from prefect import flow, task


@task
def same(x: int) -> int:
    return x


@task
def add(x: int, y: int) -> int:
    return x + y


@task
def add_up(xs: list[int]) -> int:
    return sum(xs)


@flow
def fan_out(size: int) -> int:
    return add_up(same.map(list(range(size))).result())


@flow
def chain(size: int) -> int:
    x = 0
    for _ in range(size):
        x = add(x, 1)
    return x


@flow
def small(x: int) -> int:
    for _ in range(3):
        x = add(x, 1)
    return add_up([future.result() for future in [add.submit(x, y) for y in range(4)]])

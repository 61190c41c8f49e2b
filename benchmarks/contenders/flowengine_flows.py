"""The workloads as flowengine's users write them."""

from __future__ import annotations

import functools
import threading
import time
from typing import Any

from benchmarks.workloads import LIGHT, LONG, fib
from flowengine import event_facet, facet, foreach, gather, wait_for, workflow


@event_facet
def same(x: int) -> int:
    return x


@event_facet
def add_one(x: int) -> int:
    return x + 1


@event_facet
def add(x: int, y: int) -> int:
    return x + y


@event_facet
def add_up(xs: list[int]) -> int:
    return sum(xs)


@event_facet
def add_fib(total: int, n: int) -> int:
    return total + fib(n)


@event_facet
def nap(seconds: float) -> list[float]:
    """Sleep; return when it began and ended, by the machine's clock, and in which thread."""
    begun = time.time()
    time.sleep(seconds)
    return [begun, time.time(), float(threading.get_ident())]


@workflow
def fan_out(items: list[int]) -> int:
    return add_up(foreach(items, lambda item: same(item)))


@workflow
def pipelines(items: list[int]) -> int:
    return add_up(foreach(items, lambda item: add_one(same(item))))


@workflow
def small(x: int) -> int:
    third = add_one(add_one(add_one(x)))
    return add_up([add(third, 0), add(third, 1), add(third, 2), add(third, 3)])


@workflow
def asks(x: int) -> int:
    return x + wait_for("answer", int)


@workflow
def naps(seconds: list[float]) -> list[list[float]]:
    return foreach(seconds, lambda length: nap(length))


#: A longer chain is composed of facets of this length, as nobody writes 50,000 lines either.
LONGEST = 1_000


@functools.cache
def chain(length: int) -> Any:
    """A workflow of `length` dependent steps."""
    if length > LONGEST:
        part = facet(name="benchmarks.chain_part")(_links(add_one, LONGEST))
        parts, rest = divmod(length, LONGEST)
        assert not rest, f"a chain longer than {LONGEST} must be a multiple of it"
        return workflow(name=f"benchmarks.chain_{length}")(_links(part, parts))
    return workflow(name=f"benchmarks.chain_{length}")(_links(add_one, length))


def _links(link: Any, times: int) -> Any:
    def links(x: int) -> int:
        for _ in range(times):
            x = link(x)
        return x

    return links


@functools.cache
def fibs(times: int, n: int) -> Any:
    @workflow(name=f"benchmarks.fibs_{times}_{n}")
    def sums(total: int) -> int:
        for _ in range(times):
            total = add_fib(total, n)
        return total

    sums.program()
    return sums


# --- Durable functions ------------------------------------------------------------------------


@event_facet(effects=False)
def read_one(x: int) -> int:
    return x + 1


@event_facet(on_loss="fail")  # not made in place: a loss must be told from its end
def task_one(x: int) -> int:
    return x + 1


@workflow
async def function_chain(size: int) -> int:
    x = 0
    for _ in range(size):
        x = await add_one.acall(x)
    return x


@workflow
async def function_reads(size: int) -> int:
    x = 0
    for _ in range(size):
        x = await read_one.acall(x)
    return x


@workflow
async def function_tasks(size: int) -> int:
    x = 0
    for _ in range(size):
        x = await task_one.acall(x)
    return x


@workflow
async def small_function(x: int) -> int:
    for _ in range(3):
        x = await add_one.acall(x)
    return await add_up.acall(await gather(*(add.acall(x, y) for y in range(4))))


_FUNCTIONS: dict[str, Any] = {
    "function_chain": function_chain,
    "function_reads": function_reads,
    "function_tasks": function_tasks,
}


def flow_of(do: str, size: int) -> tuple[Any, dict[str, Any]]:
    """The workflow of a workload and the inputs for its size."""
    if do == "fan_out":
        return fan_out, {"items": list(range(size))}
    if do == "pipelines":
        return pipelines, {"items": list(range(size))}
    if do == "chain":
        return chain(size), {"x": 0}
    if do in ("light", "long"):
        return fibs(size, LIGHT if do == "light" else LONG), {"total": 0}
    if do in _FUNCTIONS:
        return _FUNCTIONS[do], {"size": size}
    return small, {"x": 0}

"""The workloads as DBOS's users write them, once with steps and once with queued workflows."""

from __future__ import annotations

from typing import Any

from dbos import DBOS, DBOSConfig

from benchmarks.workloads import fib

STEPS, RUNS = "steps", "runs"  #: queues: of single steps, and of whole runs
#: Seconds between two looks into a queue, and at a result. DBOS's default of one second would
#: be most of each figure.
POLLING = 0.02
#: Steps that one process takes from the queue at a time. Without a limit the first look of one
#: process takes all of them.
AT_ONCE = 50


def configuration(url: str, executor: str = "local") -> DBOSConfig:
    return {
        "name": "bench",
        "system_database_url": url,
        "executor_id": executor,
        "log_level": "ERROR",
    }


# --- steps of one workflow ---


@DBOS.step()
def same(x: int) -> int:
    return x


@DBOS.step()
def add(x: int, y: int) -> int:
    return x + y


@DBOS.step()
def add_up(xs: list[int]) -> int:
    return sum(xs)


@DBOS.step()
def add_fib(total: int, n: int) -> int:
    return total + fib(n)


@DBOS.workflow()
def fan_out(size: int) -> int:
    # One after the other: `asyncio.gather` over async steps was tried and is slower here,
    # because each step's cost is its commit and not its body.
    return add_up([same(item) for item in range(size)])


@DBOS.workflow()
def chain(size: int) -> int:
    x = 0
    for _ in range(size):
        x = add(x, 1)
    return x


@DBOS.workflow()
def pipelines(size: int) -> int:
    return add_up([add(same(item), 1) for item in range(size)])


@DBOS.workflow()
def fibs(times: int, n: int) -> int:
    total = 0
    for _ in range(times):
        total = add_fib(total, n)
    return total


@DBOS.workflow()
def small(x: int) -> int:
    for _ in range(3):
        x = add(x, 1)
    return add_up([add(x, y) for y in range(4)])


@DBOS.workflow()
async def asks(x: int) -> int:
    answer: int = await DBOS.recv_async("answer", timeout_seconds=900)
    return x + answer


# --- steps that a queue carries to any process ---


@DBOS.workflow()
def queued_same(x: int) -> int:
    return x


@DBOS.workflow()
def queued_pipeline(x: int) -> int:
    return add(same(x), 1)


@DBOS.workflow()
def queued_fan_out(size: int) -> int:
    return add_up(_each(queued_same, size))


@DBOS.workflow()
def queued_pipelines(size: int) -> int:
    return add_up(_each(queued_pipeline, size))


def _each(flow: Any, size: int) -> list[int]:
    handles = [DBOS.enqueue_workflow(STEPS, flow, item) for item in range(size)]
    return [handle.get_result(polling_interval_sec=POLLING) for handle in handles]

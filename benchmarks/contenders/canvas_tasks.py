"""The Celery app of the canvas, tuned for many short tasks as Celery's own guide says."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

from benchmarks.workloads import fib

SETTINGS: dict[str, Any] = {
    # "Optimizing" in Celery's user guide: with many short tasks a worker should reserve more.
    "worker_prefetch_multiplier": 64,
    "worker_disable_rate_limits": True,
    # "Tasks" in the guide: do not store results that nobody reads. Those that a chord joins,
    # and the last of a chain, are read: these say so themselves.
    "task_ignore_result": True,
}

app = Celery(
    "canvas",
    broker=os.environ.get("BENCH_BROKER"),
    backend=os.environ.get("BENCH_BACKEND"),
)
app.conf.update(SETTINGS, broker_connection_retry_on_startup=True)


@app.task
def nothing() -> None:
    """For raw messages."""


@app.task(ignore_result=False)
def same(x: int) -> int:
    return x


@app.task
def link(x: int) -> int:
    """In the middle of a chain: the result travels in the message, and is not stored."""
    return x + 1


@app.task(ignore_result=False)
def last_link(x: int) -> int:
    return x + 1


@app.task(ignore_result=False)
def add(x: int, y: int) -> int:
    return x + y


@app.task(ignore_result=False)
def add_up(xs: list[int]) -> int:
    return sum(xs)


@app.task
def link_fib(total: int, n: int) -> int:
    return total + fib(n)


@app.task(ignore_result=False)
def last_fib(total: int, n: int) -> int:
    return total + fib(n)

"""The workloads: what is done, how many steps that is, and what must come out.

Bodies are no-ops that pass a number on, so that the result shows that every step has run.
A figure whose result is wrong is an error, not a figure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LIGHT, LONG = 10, 33  #: of fib: some microseconds, and most of a second


def fib(n: int) -> int:
    """The naive recursion: nothing but Python at work."""
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def small_run(number: int) -> int:
    """Return the result of a small run: three steps add one, four add 0 to 3, the join sums."""
    return 4 * (number + 3) + 6


@dataclass(frozen=True)
class Workload:
    """One kind of work. The size is the N that the README's table speaks of."""

    name: str
    title: str
    do: str  #: the method of a driver
    steps: Callable[[int], int]
    expected: Callable[[int], Any]
    sizes: tuple[int, ...]
    unit: str = "ms/step"


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            "W1",
            "raw no-op messages of Celery, published before the clock starts",
            "messages",
            steps=lambda n: n,
            expected=lambda n: n,
            sizes=(2000,),
            unit="messages/s",
        ),
        Workload(
            "W2",
            "fan-out of N and a join that adds",
            "fan_out",
            steps=lambda n: n + 1,
            expected=lambda n: n * (n - 1) // 2,
            sizes=(10, 100, 1000, 5000),
        ),
        Workload(
            "W3",
            "chain of N dependent steps",
            "chain",
            steps=lambda n: n,
            expected=lambda n: n,
            sizes=(10, 100, 1000),
        ),
        Workload(
            "W4",
            "N small runs, started one by one: 3 steps in sequence, 4 in parallel and a join",
            "small_runs",
            steps=lambda n: 8 * n,
            expected=lambda n: [small_run(number) for number in range(n)],
            sizes=(500, 2000),
            unit="runs/s",
        ),
        Workload(
            "W4 together",
            "the same small runs, started with one call",
            "small_runs_together",
            steps=lambda n: 8 * n,
            expected=lambda n: [small_run(number) for number in range(n)],
            sizes=(500, 2000),
            unit="runs/s",
        ),
        Workload(
            "W4 idle",
            "one small run at a time, N times, with a pause between",
            "idle",
            steps=lambda n: 8 * n,
            expected=lambda n: [small_run(number) for number in range(n)],
            sizes=(100,),
            unit="ms p50",
        ),
        Workload(
            "W5 light",
            "N × fib(10) in sequence",
            "light",
            steps=lambda n: n,
            expected=lambda n: n * fib(LIGHT),
            sizes=(40,),
            unit="ms/step",
        ),
        Workload(
            "W5 long",
            "N × fib(33) in sequence",
            "long",
            steps=lambda n: n,
            expected=lambda n: n * 3_524_578,  # fib(33), which takes a while
            sizes=(10,),
            unit="s",
        ),
        Workload(
            "W6",
            "foreach of N items with two steps each, and a join",
            "pipelines",
            steps=lambda n: 2 * n + 1,
            expected=lambda n: n * (n - 1) // 2 + n,
            sizes=(100, 1000, 5000),
        ),
        Workload(
            "W7",
            "N runs that wait for an answer, all started, then all answered one by one",
            "answers",
            steps=lambda n: n,
            expected=lambda n: [2 * number for number in range(n)],
            sizes=(1000, 10_000),
            unit="runs/s",
        ),
        Workload(
            "W8",
            "durable function: a chain of N awaited calls",
            "function_chain",
            steps=lambda n: n,
            expected=lambda n: n,
            sizes=(10, 100, 1000),
        ),
        Workload(
            "W8 reads",
            "durable function: a chain of N awaited calls without effects",
            "function_reads",
            steps=lambda n: n,
            expected=lambda n: n,
            sizes=(1000,),
        ),
        Workload(
            "W8 tasks",
            "durable function: a chain of N awaited calls, each with a task of its own",
            "function_tasks",
            steps=lambda n: n,
            expected=lambda n: n,
            sizes=(1000,),
        ),
        Workload(
            "W8 runs",
            "N small durable functions, started one by one: the calls of W4",
            "function_runs",
            steps=lambda n: 8 * n,
            expected=lambda n: [small_run(number) for number in range(n)],
            sizes=(500, 2000),
            unit="runs/s",
        ),
    )
}

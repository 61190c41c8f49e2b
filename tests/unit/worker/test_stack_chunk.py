"""The user's code does not stand at the edge of a chunk of Python's stack, however deep it is."""

from __future__ import annotations

import resource
from collections.abc import Callable

from flowengine.worker.stack_chunk import on_own_stack_chunk


def fib(n: int) -> int:
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def memory_taken(function: Callable[[int], int], depth: int) -> int:
    """Count the pages that a call takes anew, `depth` calls deep."""
    if depth:
        return memory_taken(function, depth - 1)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    assert function(15) == 610
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def test_calls_take_no_memory_anew_however_deep_they_are() -> None:
    plain = max(memory_taken(fib, depth) for depth in range(150))
    chunked = max(memory_taken(on_own_stack_chunk(fib), depth) for depth in range(150))
    assert chunked < 50
    assert plain > 10 * chunked, "without it some depth is an edge: else this test shows nothing"


def test_a_wrapped_function_keeps_its_name_and_result() -> None:
    assert on_own_stack_chunk(fib).__name__ == "fib"
    assert on_own_stack_chunk(fib)(10) == 55

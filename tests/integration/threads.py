"""Do things at the same moment, in threads and in processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any, TypeVar

from tests.fork_server import context

T = TypeVar("T")

#: Seconds after which something that must happen is taken not to happen.
TIMEOUT = 60.0


def in_threads(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Make all calls at the same moment, each in its thread; return what they returned."""
    barrier = threading.Barrier(len(calls))

    def one(call: Callable[[], T]) -> T:
        barrier.wait(TIMEOUT)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [made.result(TIMEOUT) for made in [pool.submit(one, call) for call in calls]]


Ready = Callable[[], Any]  #: called by a process that is set up; returns when all others are

_barrier: Any = None


def in_processes(function: Callable[..., T], arguments: Sequence[tuple[Any, ...]]) -> list[T]:
    """Call ``function(ready, *arguments)`` in a process of its own for each of the arguments."""
    barrier = context.Barrier(len(arguments))
    with ProcessPoolExecutor(
        len(arguments), mp_context=context, initializer=_remember, initargs=(barrier,)
    ) as pool:
        made = [pool.submit(_call, function, given) for given in arguments]
        return [call.result(TIMEOUT) for call in made]


def _remember(barrier: Any) -> None:
    global _barrier
    _barrier = barrier


def _call(function: Callable[..., T], given: tuple[Any, ...]) -> T:
    return function(lambda: _barrier.wait(TIMEOUT), *given)


def wait_until(happens: Callable[[], Any], what: str) -> None:
    """Return as soon as it has happened."""
    deadline = time.monotonic() + TIMEOUT
    while not happens():
        assert time.monotonic() < deadline, f"in vain waited until {what}"
        time.sleep(0.005)

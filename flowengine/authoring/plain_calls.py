"""Facets that are called as plain Python, outside of runs: also asynchronous ones."""

from __future__ import annotations

import inspect
from typing import Any


def resolved(returned: Any) -> Any:
    """Return the result of a facet called as plain Python, also of an async one.

    Inside a running event loop blocking is not allowed: the caller awaits the coroutine. Elsewhere
    it runs in the loop in which workers run it, where a client of its module keeps working.
    """
    if not inspect.isawaitable(returned):
        return returned
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run_awaitable(returned)
    return returned


def run_awaitable(awaitable: Any) -> Any:
    """Run a coroutine in the event loop of this process.

    Imported here: asyncio takes a tenth of the time of `flowengine --help`.
    """
    from flowengine.event_loop import event_loop

    return event_loop().run(awaitable)

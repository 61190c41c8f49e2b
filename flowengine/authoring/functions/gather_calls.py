"""`gather`: await several calls together, at most `limit` at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any, TypeVar

from flowengine.authoring.current_function import current_activation
from flowengine.authoring.functions.calls import settled
from flowengine.authoring.functions.pending_calls import PendingCall
from flowengine.authoring.locations import user_location
from flowengine.errors import FunctionMisuse

R = TypeVar("R")


def gather(*calls: Awaitable[R], limit: int | None = None) -> Coroutine[Any, Any, list[R]]:
    """Await all calls and return their results in the order of the calls.

    At most `limit` of them are open at a time. The first error is raised at once: no further call
    is made, those that were made go on, as with `asyncio.gather`. If the caller is cancelled, so
    are they. Calls that are made together are recorded as a group, which wakes the function once.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        _forget(calls)
        raise FunctionMisuse(f"{user_location()}: the limit of gather is 1 or more, not {limit!r}")
    for call in calls:
        if isinstance(call, list | tuple | set):
            raise FunctionMisuse(
                f"{user_location()}: gather takes calls, not a {type(call).__name__} of them: "
                "write `await gather(*calls)`"
            )
    gathered: Coroutine[Any, Any, list[R]] = settled(_gathered(calls, limit))
    return gathered


async def _gathered(calls: tuple[Any, ...], limit: int | None) -> list[Any]:
    if limit is None or limit >= len(calls):
        return list(await asyncio.gather(*_together(calls)))
    return await _limited(calls, limit)


def _together(calls: tuple[Any, ...]) -> tuple[Any, ...]:
    """Make calls of facets now, as a group; return them and others as awaitables."""
    activation = current_activation()
    if activation is None or len(calls) < 2 or not all(_is_call(one) for one in calls):
        return calls
    group = activation.numbers.next
    return tuple(activation.make(call, group) for call in calls)


async def _limited(calls: tuple[Any, ...], limit: int) -> list[Any]:
    results: list[Any] = [None] * len(calls)
    waiting = iter(enumerate(calls))

    async def await_in_turn() -> None:
        try:
            for place, call in waiting:
                results[place] = await call
        finally:  # after an error no other call is made
            _forget(call for _, call in waiting)

    try:
        await asyncio.gather(*(await_in_turn() for _ in range(limit)))
    finally:  # if it is cancelled before they begin
        _forget(call for _, call in waiting)
    return results


def _forget(calls: Iterable[Any]) -> None:
    """Close calls that are never made: nobody need await them."""
    for call in calls:
        if asyncio.iscoroutine(call):
            call.close()


def _is_call(one: Any) -> bool:
    return isinstance(one, PendingCall)

"""Calls that were created and not awaited: nothing would ever make them."""

from __future__ import annotations

import re
import sys
from typing import Any, Final

from flowengine.authoring.functions.pending_calls import PendingCall


def _references(calls: dict[int, Any], key: int) -> int:
    """Return the references to a call, with those of this function; 0 if it was awaited."""
    call = calls.get(key)
    return 0 if call is None else sys.getrefcount(call)


_HELD_ONCE: Final = _references({1: object()}, 1)  # versions of Python count differently

_CALL = rf"\b({PendingCall.__name__}|coroutine)\b"


class UnawaitedCalls:
    """The calls of one function that were not awaited yet."""

    def __init__(self) -> None:
        self._calls: dict[int, PendingCall[Any]] = {}
        self._created: list[int] = []  #: keys of those since the last rest

    def add(self, key: int, call: PendingCall[Any]) -> None:
        self._calls[key] = call
        self._created.append(key)

    def remove(self, key: int) -> None:
        self._calls.pop(key, None)

    def clear(self) -> None:
        self._calls.clear()

    def lost(self) -> PendingCall[Any] | None:
        """Return a new call that nobody can await any more; called when the loop rests.

        References are counted, because that depends on the code alone: the time at which the
        garbage collector finds a call would not. One that is lost later is found at the end.
        """
        created, self._created = self._created, []
        for key in created:
            if 0 < _references(self._calls, key) <= _HELD_ONCE:
                return self._calls[key]
        return None

    def first(self) -> PendingCall[Any] | None:
        """Return the oldest one; called when the function has returned."""
        return next(iter(self._calls.values()), None)


def is_use_of_call(problem: BaseException) -> bool:
    """Whether code has used a call, or several in `gather`, like a result."""
    is_error_of_python = isinstance(problem, TypeError | AttributeError)
    return is_error_of_python and re.search(_CALL, str(problem)) is not None


def never_awaited(call: PendingCall[Any]) -> str:
    """Return the message about a call that was never awaited."""
    short = call.facet.rpartition(".")[2]
    cure = f"write `await {short}(…)`"
    if call.activation.function.is_plain:
        cure = f"write `{short}(…)`, or give the call to gather(…)"
    return f"{call.location}: {call.facet} is called and never awaited, so nothing calls it: {cure}"

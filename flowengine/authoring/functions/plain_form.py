"""Durable functions as plain ``def``: their calls return results, without ``await``.

The body runs in a greenlet. A call switches to the coroutine of the activation, which awaits it and
switches back with its result, or raises its error there. So the body of a function and its record
are the same in both forms. This is the one module that imports greenlet, of the extra `sync`.
"""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

R = TypeVar("R")

#: The greenlet of the function whose code runs. Its tasks have the same context, and are not it.
_body: ContextVar[Any] = ContextVar("flowengine_plain_body", default=None)


async def run_plainly(fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run a plain function whose calls are awaited here."""

    def body() -> Any:
        _body.set(getcurrent())
        return fn(*args, **kwargs)

    _greenlet = greenlet(body)  # named so for `waiting_lines`
    _greenlet.gr_context = contextvars.copy_context()
    waiting = _greenlet.switch()
    while not _greenlet.dead:
        try:
            value = await waiting
        except BaseException as problem:  # also of a coroutine that is cancelled or dropped
            waiting = _greenlet.throw(problem)
        else:
            waiting = _greenlet.switch(value)
    return waiting


def is_plain_body() -> bool:
    """Whether the code that calls is the body of a plain function, and no task that it made."""
    inner = _body.get()
    return inner is not None and getcurrent() is inner


def waited(call: Awaitable[R]) -> R:
    """Let the activation await a call of the body; return its result."""
    result: R = _body.get().parent.switch(call)
    return result

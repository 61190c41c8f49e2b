"""The handlers of an agent: callbacks and event facets, by qualified or short name.

A task names its facet by the qualified name. Its handler is the one of that name, else the one of
the short name, the part behind the last dot. A claim asks for both; a qualified name that was met
once is remembered, so that its tasks are batched and continued like those of a registered one.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from flowengine.authoring import EventFacet, WorkflowCall, event_facet_named
from flowengine.errors import HandlerRefused, ValueRefused
from flowengine.event_loop import event_loop
from flowengine.program.function_options import without_version
from flowengine.program.nodes import Json
from flowengine.program.standard import CHILD, is_built_in
from flowengine.worker.handlers import Handler

#: Takes the arguments of a step, and returns its results, both by name.
Callback: TypeAlias = Callable[
    [dict[str, Any]], Mapping[str, Any] | Awaitable[Mapping[str, Any] | None] | None
]


_MAX_MET = 1_000  # names that a claim asks for besides the registered ones


class CallbackHandler:
    """A callback as the handler of a facet."""

    validates = False  #: the types of the program do, as for an answer from outside
    is_final = staticmethod(lambda problem: False)

    def __init__(self, name: str, callback: Callback) -> None:
        self._name, self.callback = name, callback
        called = getattr(callback, "__call__", None)  # noqa: B004 - its own, of an object
        self.is_async = inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(called)

    def call(self, data: Mapping[str, Json]) -> Any:
        return self.callback(dict(data))

    def written(self, returned: Any) -> dict[str, Json] | WorkflowCall:
        if isinstance(returned, WorkflowCall):
            return returned
        if returned is None:
            return {}
        if isinstance(returned, Mapping):
            return dict(returned)
        raise ValueRefused(
            f"the callback of {self._name} returned a value of type {type(returned).__name__}: "
            "it must return a dict with the results of the facet by name"
        )


class Blocking:
    """A handler whose coroutine is awaited by the thread that calls it."""

    is_async = False

    def __init__(self, handler: Handler, run: Callable[[Any], Any]) -> None:
        self._handler, self._run = handler, run
        self.validates, self.is_final = handler.validates, handler.is_final
        self.written = handler.written
        if hasattr(handler, "durable"):
            self.durable = handler.durable  #: of a durable function: its code, for activations

    def call(self, data: Mapping[str, Json]) -> Any:
        returned = self._handler.call(data)
        return self._run(returned) if inspect.isawaitable(returned) else returned


def run_in_place(awaitable: Awaitable[Any]) -> Any:
    """Run a coroutine in this thread, in an event loop of its own."""

    async def awaited() -> Any:
        return await awaitable

    return asyncio.run(awaited())


class HandlerTable:
    """Shared by all threads of an agent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handlers: dict[str, Handler] = {}
        self._default: Handler | None = None  #: for facets without one
        self._met: set[str] = set()  #: qualified names that a short one or the default serves

    def add(self, names: tuple[str, ...], handler: Handler) -> None:
        with self._lock:
            for name in names:
                self._check(name, handler)
            self._handlers.update(dict.fromkeys(names, handler))

    def set_default(self, handler: Handler) -> None:
        with self._lock:
            if self._default is not None:
                raise HandlerRefused("any facet", "there is a default handler already")
            self._default = handler

    def _check(self, name: str, handler: Handler) -> None:
        # The facet of a durable function has its version behind the name.
        plain = without_version(name) if isinstance(name, str) else ""
        if not all(part.isidentifier() for part in plain.split(".")):
            reason = 'it must be the name of an event facet, as "billing.ProcessPayment"'
            raise HandlerRefused(name, f"{reason} or the short name behind its last dot")
        if is_built_in(name):
            raise HandlerRefused(name, "the engine runs the facets of its own namespace")
        if name in self._handlers:
            raise HandlerRefused(name, "this name has a handler; a facet is handled by one")

    def registered(self) -> list[str]:
        return sorted(self._handlers.copy())

    def names(self) -> list[str]:
        """Return the names to claim tasks of; the start of a child run needs no user's code."""
        return sorted({*self._handlers.copy(), *self._met.copy(), CHILD})

    def served(self) -> list[str]:
        """Return the names that the row of the server shows."""
        return [*self.registered(), CHILD]

    def find(self, name: str) -> Handler | None:
        if name == CHILD:
            return event_facet_named(name)
        handlers = self._handlers
        if (exact := handlers.get(name)) is not None:
            return exact
        other = handlers.get(name.rpartition(".")[2], None if is_built_in(name) else self._default)
        if other is not None and name not in self._met:
            if len(self._met) >= _MAX_MET:
                self._met.pop()  # it is met again with its next task
            self._met.add(name)
        return other

    def find_blocking(self, name: str) -> Handler | None:
        """Return the handler so that its thread waits for it, in the event loop of the process."""
        return _blocking(self.find(name), event_loop().run)

    def find_in_place(self, name: str) -> Handler | None:
        """Return the handler so that it needs no other thread."""
        return _blocking(self.find(name), run_in_place)

    @property
    def is_empty(self) -> bool:
        return not self._handlers

    @property
    def has_async(self) -> bool:
        return any(handler.is_async for handler in self._all())

    @property
    def is_all_async(self) -> bool:
        return all(handler.is_async for handler in self._all())

    def met(self) -> list[str]:
        """Return the qualified names that a short name, or the default handler, has served."""
        return sorted(self._met.copy())

    @property
    def has_default(self) -> bool:
        return self._default is not None

    def _all(self) -> list[Handler]:
        default = self._default
        return [*self._handlers.copy().values(), *([] if default is None else [default])]


def _blocking(handler: Handler | None, run: Callable[[Any], Any]) -> Handler | None:
    return None if handler is None else Blocking(handler, run)


def handler_of(facet: str | EventFacet[..., Any], callback: Callback | None) -> Handler:
    """Return the handler for what somebody registers; refuse anything that cannot be called."""
    if isinstance(facet, EventFacet):
        if callback is not None:
            raise HandlerRefused(facet.name, "an event facet has code; register it alone")
        return facet
    if isinstance(callback, EventFacet):
        return callback
    if not callable(callback):
        kind = type(callback).__name__
        raise HandlerRefused(facet, f"a callback is a function of one dict, not a {kind}")
    return CallbackHandler(facet, callback)

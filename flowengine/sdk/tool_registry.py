"""The handlers of a runner: by qualified name, by short name, and one for everything else."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, overload

from flowengine.authoring import EventFacet, FunctionWorkflow
from flowengine.errors import HandlerRefused
from flowengine.sdk.handlers import Callback, HandlerTable, handler_of
from flowengine.worker.handlers import Handler

C = TypeVar("C", bound=Callback)
F = TypeVar("F", bound=EventFacet[..., Any] | FunctionWorkflow[..., Any])


class ToolRegistry:
    """Handlers that several runners may share.

    A task is given to the handler of its qualified name, else to the one of the short name behind
    the last dot, else to the default handler.
    """

    def __init__(self) -> None:
        self.table = HandlerTable()  #: read by the threads of the runners

    @overload
    def register(self, facet_name: str, callback: Callback) -> None: ...
    @overload
    def register(self, facet_name: str) -> Callable[[C], C]: ...
    @overload
    def register(self, facet_name: F) -> F: ...
    def register(self, facet_name: Any, callback: Any = None) -> Any:
        """Register the handler of an event facet, by its qualified or its short name.

        A callback takes the arguments of a step as a dict and returns its results as a dict; it may
        be an ``async def``. With a name alone this is a decorator. An `EventFacet` is registered
        under its own name and its aliases, a durable function under those of its activations.
        """
        if isinstance(facet_name, FunctionWorkflow):
            self.register(facet_name.activation)
            return facet_name
        if isinstance(facet_name, EventFacet):
            names = (facet_name.name, *facet_name.aliases)
            self.table.add(names, handler_of(facet_name, callback))
            return facet_name
        if callable(facet_name):
            name = getattr(facet_name, "__name__", type(facet_name).__name__)
            reason = 'name its facet: @register("billing.ProcessPayment")'
            raise HandlerRefused(name, reason)
        if callback is None:
            return functools.partial(self._registered, facet_name)
        self._registered(facet_name, callback)
        return None

    def _registered(self, name: str, callback: C) -> C:
        self.table.add((name,), handler_of(name, callback))
        return callback

    def set_default_handler(self, callback: Callback) -> None:
        """Handle facets without a handler; `current_step().facet` tells the callback which one."""
        self.table.set_default(handler_of("the default handler", callback))

    def registered_names(self) -> list[str]:
        """Return the names with which handlers are registered, sorted."""
        return self.table.registered()

    def has_handler(self, facet_name: str) -> bool:
        """Return whether a facet has a handler, be it the default one."""
        return self.find(facet_name) is not None

    def find(self, facet_name: str) -> Handler | None:
        """Return the handler of a facet by its qualified name."""
        return self.table.find(facet_name)

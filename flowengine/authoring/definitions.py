"""The definition of a decorated function: name, location, options, signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flowengine.authoring.locations import location_of
from flowengine.authoring.names import qualified_alias, qualified_name
from flowengine.authoring.signatures import Signature, signature_of, starred_parameters
from flowengine.errors import AuthoringError
from flowengine.program.nodes import EventOptions, FacetKind, Location

_WORDS = {FacetKind.EVENT: "event facet", FacetKind.FACET: "facet", FacetKind.WORKFLOW: "workflow"}


@dataclass(frozen=True, eq=False)
class Definition:
    """One decorated function, compared by identity."""

    kind: FacetKind
    fn: Callable[..., Any]
    name: str  #: qualified, as stored in runs
    aliases: tuple[str, ...]  #: qualified too
    location: Location
    options: EventOptions

    @property
    def namespace(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def title(self) -> str:
        """The name in errors: ``workflow 'shop.order' (shop.py:12)``."""
        return titled(self.kind, self.name, self.location)

    @cached_property
    def signature(self) -> Signature:
        # Lazy: an annotation may name a class that is defined further down.
        return signature_of(self.fn, self.title)

    def replaces(self, other: Definition) -> bool:
        """Whether this redefines `other`: its module was reloaded, or run as main and imported.

        A notebook gives each cell its own file, so an equal module name is enough.
        """
        mine, theirs = inspect.unwrap(self.fn), inspect.unwrap(other.fn)
        return (
            self.kind == other.kind
            and mine.__qualname__ == theirs.__qualname__
            and (self.location.file == other.location.file or mine.__module__ == theirs.__module__)
        )


def titled(kind: FacetKind, name: str, location: Location) -> str:
    """Return the name of a facet in errors."""
    return f"{_WORDS[kind]} {name!r} ({location})"


def define(
    kind: FacetKind,
    fn: Callable[..., Any],
    *,
    name: str | None,
    aliases: tuple[str, ...],
    options: EventOptions,
) -> Definition:
    """Define a function; raises AuthoringError for problems visible before tracing."""
    location = location_of(fn)
    try:
        qualified = qualified_name(fn, name)
        others = tuple(qualified_alias(fn, alias) for alias in aliases)
    except AuthoringError as error:
        word = _WORDS[kind]
        raise AuthoringError(f"{word} {fn.__qualname__!r} ({location}): {error}") from None
    title = titled(kind, qualified, location)
    if stars := starred_parameters(fn):
        raise AuthoringError(
            f"{title} takes {' and '.join(stars)}: a program needs a name for each parameter; "
            "take a list or a dict instead"
        )
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise AuthoringError(f"{title} yields: a facet returns one value, for instance a list")
    if kind is not FacetKind.EVENT and inspect.iscoroutinefunction(fn):
        raise AuthoringError(
            f"{title} is an `async def`: its body is traced once and never awaited; write `def`, "
            "the event facets it calls may be async"
        )
    return Definition(kind, fn, qualified, others, location, options)

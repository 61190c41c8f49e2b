"""Find the event facets and workflows of this process by name.

A worker is told a facet's name and needs its function; the name may be one that
a stored run knew before the code was moved, kept as an alias.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flowengine.authoring.breakers import Breaker
from flowengine.errors import AuthoringError

if TYPE_CHECKING:
    from flowengine.authoring.facets import EventFacet, Workflow

_event_facets: dict[str, EventFacet[..., Any]] = {}
_standard: dict[str, EventFacet[..., Any]] = {}
_workflows: dict[str, Workflow[..., Any]] = {}
_lock = threading.Lock()  # for writers; a reader looks up one key, or copies in one step


def register_event_facet(facet: EventFacet[..., Any]) -> None:
    """Let the facet answer to its name and aliases."""
    breaker = facet.breaker
    if breaker is not None and breaker != Breaker(breaker.name):
        for other in _described(breaker.name):
            # A module that is reloaded may describe it anew.
            if other.breaker != breaker and other.name != facet.name:
                raise AuthoringError(
                    f"{facet.definition.title} and {other.definition.title} describe circuit "
                    f"{breaker.name!r} in different ways; describe it once, and elsewhere say "
                    f'breaker="{breaker.name}"'
                )
    _register(_event_facets, facet)


def register_standard(facet: EventFacet[..., Any]) -> None:
    """Let a facet of flowengine's own answer to its name, whatever else is registered."""
    _standard[facet.name] = facet


def register_workflow(workflow: Workflow[..., Any]) -> None:
    """Let the workflow answer to its name and aliases."""
    _register(_workflows, workflow)


def event_facet_named(name: str) -> EventFacet[..., Any] | None:
    """The event facet that answers to a qualified name or an alias."""
    return _event_facets.get(name) or _standard.get(name)


def event_facet_names() -> list[str]:
    """All names and aliases of the event facets here, sorted."""
    return sorted({*_event_facets.copy(), *_standard})


def breaker_named(name: str) -> Breaker:
    """The circuit of that name, as the facets here describe it; else with nothing but its name."""
    for facet in _described(name):
        assert facet.breaker is not None
        return facet.breaker
    return Breaker(name)


def _described(name: str) -> list[EventFacet[..., Any]]:
    """The facets that say more of this circuit than its name."""
    return [
        facet
        for facet in _event_facets.copy().values()
        if facet.breaker is not None
        and facet.breaker.name == name
        and facet.breaker != Breaker(name)
    ]


def workflow_named(name: str) -> Workflow[..., Any] | None:
    """The workflow that answers to a qualified name or an alias."""
    return _workflows.get(name)


@contextmanager
def empty_registry() -> Iterator[None]:
    """Begin with no names and forget those that came meanwhile; for tests."""
    with _lock:
        kept = _event_facets.copy(), _workflows.copy()
        _event_facets.clear()
        _workflows.clear()
    try:
        yield
    finally:
        with _lock:
            _event_facets.clear()
            _event_facets.update(kept[0])
            _workflows.clear()
            _workflows.update(kept[1])


def _register(registry: dict[str, Any], added: Any) -> None:
    definition = added.definition
    names = (definition.name, *definition.aliases)
    with _lock:
        for name in names:
            other = registry[name].definition if name in registry else None
            # Refused, not replaced: a worker that took the later one would run the
            # wrong code for every stored run of the earlier one, without a word.
            if other is not None and not definition.replaces(other):
                raise AuthoringError(
                    f"{definition.title} wants the name {name!r}, which {other.title} has; "
                    'give one of them another with name="…"'
                )
        # A reload may have dropped an alias. Added before dropped: a reader never finds
        # the name that stays missing.
        dropped = [
            name
            for name, other in registry.items()
            if name not in names
            and other.definition.name == definition.name
            and definition.replaces(other.definition)
        ]
        registry.update(dict.fromkeys(names, added))
        for name in dropped:
            del registry[name]

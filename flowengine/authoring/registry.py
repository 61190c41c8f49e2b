"""The event facets and workflows of this process, by name.

A task names its facet, possibly by an alias: the name from before the code moved.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowengine.authoring.options import Breaker
from flowengine.errors import AuthoringError
from flowengine.program import Program
from flowengine.program.function_options import function_facet
from flowengine.program.nodes import Declaration, FacetDeclaration, FacetKind, Namespace

if TYPE_CHECKING:
    from flowengine.authoring.facets import EventFacet, Workflow

_event_facets: dict[str, EventFacet[..., Any]] = {}
_standard: dict[str, EventFacet[..., Any]] = {}
_workflows: dict[str, Workflow[..., Any]] = {}
_loaded: dict[str, LoadedWorkflow] = {}
_lock = threading.Lock()  # writers only: reads are atomic (one key, or one copy)
_changes = 0  #: raised after each change of facets
_names: tuple[int, list[str]] = (-1, [])  #: sorted, with the changes that they are of


def register_event_facet(facet: EventFacet[..., Any]) -> None:
    """Register a facet under its name and aliases."""
    breaker = facet.breaker
    if breaker is not None and breaker != Breaker(breaker.name):
        for other in _describing(breaker.name):
            # A reloaded module may describe it differently.
            if other.breaker != breaker and other.name != facet.name:
                raise AuthoringError(
                    f"{facet.definition.title} and {other.definition.title} describe circuit "
                    f"breaker {breaker.name!r} differently; describe it once, elsewhere write "
                    f'breaker="{breaker.name}"'
                )
    _register(_event_facets, facet)


def register_standard(facet: EventFacet[..., Any]) -> None:
    """Register a built-in facet."""
    _standard[facet.name] = facet
    note_change()


def note_change() -> None:
    """Have the names of facets listed again: called after each change of them."""
    global _changes
    _changes += 1


def register_workflow(workflow: Workflow[..., Any]) -> None:
    """Register a workflow under its name and aliases; of a durable function the newest version.

    Older versions are there for the runs that have them, and start no new ones.
    """
    names = (workflow.name, *workflow.aliases)
    version = _version(workflow)
    with _lock:
        for name in names if version is not None else ():
            other = _workflows.get(name)
            known = None if other is None else _version(other)
            if version is not None and known is not None and known > version:
                return
            if known is not None and known != version:
                del _workflows[name]
    _register(_workflows, workflow)


def older_version(workflow: Workflow[..., Any]) -> int | None:
    """Return the version of a durable function, None if it is the newest one or no function."""
    newest = _workflows.get(workflow.name)
    version = _version(workflow)
    return None if newest is None or _version(newest) == version else version


def workflow_of_version(name: str, version: int | None) -> Workflow[..., Any] | None:
    """Return a version of a durable function; None: the newest one, or any workflow."""
    if version is None:
        return _workflows.get(name)
    facet: Any = _event_facets.get(function_facet(name, version))
    return None if facet is None else facet.workflow


def _version(workflow: Workflow[..., Any]) -> int | None:
    activation = workflow.definition.activation
    function = None if activation is None else activation.function
    return None if function is None else function.version


def event_facet_named(name: str) -> EventFacet[..., Any] | None:
    """Return the event facet of a qualified name or alias."""
    return _event_facets.get(name) or _standard.get(name)


def event_facet_names() -> list[str]:
    """Return all names and aliases of event facets, sorted: one list until a facet is registered.

    Workers ask at every step, and there may be hundreds of facets.
    """
    global _names
    changes = _changes  # before the names are read: a change in between is seen the next time
    if _names[0] != changes:
        _names = changes, sorted({*_event_facets.copy(), *_standard.copy()})
    return _names[1]


def breaker_named(name: str) -> Breaker:
    """Return the breaker as a facet here describes it, else one with defaults."""
    for facet in _describing(name):
        assert facet.breaker is not None
        return facet.breaker
    return Breaker(name)


def _describing(name: str) -> list[EventFacet[..., Any]]:
    """Return the facets that describe this breaker beyond its name."""
    return [
        facet
        for facet in _event_facets.copy().values()
        if facet.breaker is not None
        and facet.breaker.name == name
        and facet.breaker != Breaker(name)
    ]


def workflow_named(name: str) -> Workflow[..., Any] | None:
    """Return the workflow of a qualified name or alias."""
    return _workflows.get(name)


def workflow_names() -> list[str]:
    """Return all names and aliases of workflows, sorted."""
    return sorted(_workflows.copy())


def all_workflows() -> list[Workflow[..., Any]]:
    """Return the workflows, each once."""
    return list({id(flow): flow for flow in _workflows.copy().values()}.values())


def scheduled_workflows() -> list[Workflow[..., Any]]:
    """Return the workflows that have schedules, each once."""
    found = {flow.name: flow for flow in _workflows.copy().values() if flow.schedules}
    return [found[name] for name in sorted(found)]


@dataclass(frozen=True)
class LoadedWorkflow:
    """A workflow of a program that was loaded from files."""

    name: str
    program: Program
    source: str  #: afl or json
    place: str


def register_program(program: Program, source: str, place: str) -> None:
    """Note the workflows of a program that was loaded; a later one of the same name replaces it."""
    for name in _workflows_of(program.declarations):
        _loaded[name] = LoadedWorkflow(name, program, source, place)


def loaded_workflows() -> list[LoadedWorkflow]:
    """Return the workflows of loaded programs by name."""
    return [each for _, each in sorted(_loaded.copy().items())]


def _workflows_of(declarations: Iterable[Declaration], namespace: str = "") -> Iterator[str]:
    for declared in declarations:
        name = f"{namespace}.{declared.name}" if namespace else declared.name
        if isinstance(declared, Namespace):
            yield from _workflows_of(declared.declarations, name)
        elif isinstance(declared, FacetDeclaration) and declared.kind is FacetKind.WORKFLOW:
            yield name


def _register(registry: dict[str, Any], added: Any) -> None:
    definition = added.definition
    names = (definition.name, *definition.aliases)
    with _lock:
        for name in names:
            other = registry[name].definition if name in registry else None
            # Refuse instead of replacing: a worker would silently run the wrong code for
            # stored runs of the earlier facet.
            if other is not None and not definition.replaces(other):
                raise AuthoringError(
                    f"{definition.title} has the same name {name!r} as {other.title}; "
                    'rename one of them with name="…"'
                )
        # A reload may drop an alias. Add names before deleting, so that a reader never
        # misses a name that stays.
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
        note_change()

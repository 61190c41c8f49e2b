"""The definition of a decorated function: name, location, options, signature.

A qualified name is ``namespace.name``. Stored programs and tasks refer to it, so it
must not depend on how a file is started: ``python quickstart.py``,
``python -m quickstart`` and ``import quickstart`` give equal names and program hashes.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from flowengine.authoring.locations import location_of
from flowengine.authoring.signatures import Signature, signature_of, starred_parameters
from flowengine.authoring.task_lists import TaskListSource, routed_list
from flowengine.errors import AuthoringError
from flowengine.lazy import lazy
from flowengine.program.function_options import without_version
from flowengine.program.nodes import EventOptions, FacetKind, FunctionOptions, Location, Mixin
from flowengine.program.standard import STANDARD, is_built_in

# A child of multiprocessing's spawn runs the main file again, as `__mp_main__`.
_MAIN = frozenset(["__main__", "__mp_main__"])
_WORDS = {FacetKind.EVENT: "event facet", FacetKind.FACET: "facet", FacetKind.WORKFLOW: "workflow"}


@dataclass(frozen=True, eq=False)
class Definition:
    """One decorated function, compared by identity."""

    kind: FacetKind
    fn: Callable[..., Any]
    name: str  #: qualified, as stored in runs
    aliases: tuple[str, ...]  #: qualified too
    location: Location
    given: EventOptions  #: as the decorator was given them, with defaults
    names_list: bool = True  #: whether the task list among them is the author's
    find_list: TaskListSource = routed_list  #: otherwise
    mixins: tuple[Mixin, ...] = ()  #: of its signature
    function: FunctionOptions | None = None  #: of the event facet of a durable function
    #: Of a workflow that is a durable function: its event facet.
    activation: Definition | None = None

    @property
    def options(self) -> EventOptions:
        """The execution options. Routes are read here: an app may get them after its facets."""
        if self.names_list or self.kind is not FacetKind.EVENT:
            return self.given
        try:
            # Of a durable function all versions have the route of its name.
            found = self.find_list(without_version(self.name))
        except Exception as problem:
            raise AuthoringError(
                f"{self.title} has no task list: {type(problem).__name__}: {problem}; correct "
                "task_routes and task_queues of the Celery app, or name a list with task_list="
            ) from problem
        return replace(self.given, task_list=found) if found else self.given

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def title(self) -> str:
        """The name in errors: ``workflow 'shop.order' (shop.py:12)``."""
        if self.function is not None:
            return f"durable function {self.name!r} ({self.location})"
        return titled(self.kind, self.name, self.location)

    @lazy
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
    names_list: bool = True,
    find_list: TaskListSource = routed_list,
    mixins: tuple[Mixin, ...] = (),
    is_run: bool = False,
) -> Definition:
    """Define a function; raises AuthoringError for problems visible before tracing.

    With `is_run` its body is run, and may be an ``async def``.
    """
    location = location_of(fn)
    try:
        qualified = _name_of(fn, name)
        others = tuple(_qualified(fn, alias, "alias") for alias in aliases)
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
    if kind is not FacetKind.EVENT and not is_run and inspect.iscoroutinefunction(fn):
        raise AuthoringError(
            f"{title} is an `async def`: its body is traced once and never awaited; write `def`, "
            "the event facets it calls may be async; or make it a @workflow, which is run then"
        )
    found = (names_list, find_list, mixins)
    return Definition(kind, fn, qualified, others, location, options, *found)


def namespace_of(fn: Callable[..., Any]) -> str:
    """Return the name of the function's module, as an import statement names it."""
    function = inspect.unwrap(fn)
    module = getattr(function, "__module__", None) or "__main__"
    if module not in _MAIN:
        return str(module)
    # Prefer the function's globals: while multiprocessing runs the main file again,
    # `sys.modules["__main__"]` is its bootstrap module.
    names = getattr(function, "__globals__", None)
    return main_namespace(vars(sys.modules[module]) if names is None else names)


def main_namespace(names: Mapping[str, Any]) -> str:
    """Return the namespace of a main module, from its global names."""
    spec = names.get("__spec__")
    if spec is not None and spec.name != "__main__":
        return str(spec.name).removesuffix(".__main__")
    file = names.get("__file__")
    return PurePath(file).stem if file else "__main__"


def _name_of(fn: Callable[..., Any], given: str | None) -> str:
    """Return the given name, or the name derived from the function's module."""
    if given is not None:
        return _qualified(fn, given, "name")
    qualname = getattr(fn, "__qualname__", None) or "<unnamed>"
    if not qualname.isidentifier():
        kind = "a local function" if "<locals>" in qualname else "not a plain module-level function"
        raise AuthoringError(
            f"{qualname} is {kind}: a stored run cannot find it again by that name; "
            'give it a name with name="…"'
        )
    return f"{namespace_of(fn)}.{qualname}"


def _qualified(fn: Callable[..., Any], given: object, what: str) -> str:
    if not isinstance(given, str) or not all(part.isidentifier() for part in given.split(".")):
        raise AuthoringError(f"the {what} {given!r} is not a dotted sequence of identifiers")
    whole = given if "." in given else f"{namespace_of(fn)}.{given}"
    if whole in STANDARD:
        reserved = whole.rpartition(".")[2]
        raise AuthoringError(f"the {what} {whole!r} is reserved for {reserved}(...)")
    if is_built_in(given):
        raise AuthoringError(f"the {what} {given!r} is in a namespace that is the engine's own")
    return whole

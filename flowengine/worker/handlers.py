"""Handlers: the code that runs the tasks of a facet, and how a worker finds it by name.

A worker of Celery, and the embedded one, find the event facets that this process has decorated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from flowengine.authoring import WorkflowCall
from flowengine.program.nodes import Json


class Handler(Protocol):
    """The code of one facet. An `EventFacet` is one."""

    @property
    def is_async(self) -> bool:
        """Whether `call` returns a coroutine, which runs in the event loop of the process."""

    @property
    def validates(self) -> bool:
        """Whether `written` has validated the result; else the types of the program do."""

    @property
    def is_final(self) -> Callable[[BaseException], bool]:
        """Returns whether an error is not worth a retry."""

    def call(self, data: Mapping[str, Json]) -> Any:
        """Call the code with the stored arguments of a step."""

    def written(self, returned: Any) -> dict[str, Json] | WorkflowCall:
        """Return the result of the code by names, as JSON."""


#: Returns the handler of a facet by its qualified name.
FindHandler: TypeAlias = Callable[[str], Handler | None]


class NameSet:
    """The names of facets as a set, which is made anew only when their list is another one."""

    def __init__(self) -> None:
        self._last: tuple[Sequence[str], frozenset[str]] = ((), frozenset())

    def of(self, names: Sequence[str]) -> Collection[str]:
        listed, found = self._last
        if listed is not names:
            found = frozenset(names)
            self._last = names, found
        return found

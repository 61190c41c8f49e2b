"""A canvas as plain values: what a composition of Celery signatures says, without Celery.

The layer that knows Celery reads signatures into these parts. Options that have no counterpart
never get here: they are refused there.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True)
class TaskPart:
    """The call of one task. Unless it is immutable, the result before it is its first argument."""

    task: str  #: the name of an event facet
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    immutable: bool = False
    countdown: float | None = None  #: seconds between the task before it and its begin
    eta: datetime.datetime | None = None
    expires: float | None = None  #: seconds after its begin in which it must end
    links: tuple[Part, ...] = ()  #: called with its result; their failure is no failure of it
    errbacks: tuple[Errback, ...] = ()
    place: str = "canvas"  #: in errors


@dataclass(frozen=True)
class ChainPart:
    """Parts one after the other: each gets the result of the one before it."""

    parts: tuple[Part, ...]
    links: tuple[Part, ...] = ()
    errbacks: tuple[Errback, ...] = ()
    place: str = "canvas"


@dataclass(frozen=True)
class GroupPart:
    """Parts side by side, each with the result before the group; its result is their list."""

    members: tuple[Part, ...]
    place: str = "canvas"


@dataclass(frozen=True)
class MapPart:
    """One task for each item, one after the other: `map`, and `starmap` with several arguments."""

    task: str
    items: tuple[tuple[Any, ...], ...]  #: the arguments of each call
    place: str = "canvas"


@dataclass(frozen=True)
class Errback:
    """A task that is called when another has failed."""

    task: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    immutable: bool = False  #: else it gets request, error and traceback before its arguments
    place: str = "canvas"


Part: TypeAlias = TaskPart | ChainPart | GroupPart | MapPart

"""The options of event facets: how often they are tried, and how many of them run at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

Errors = type[BaseException] | str | Iterable[type[BaseException] | str]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The number of tries of a failing event facet, and the waits between them."""

    attempts: int = 1  #: tries in total; 1: no retry
    first_wait: float = 1.0  #: seconds before the second try
    factor: float = 2.0  #: each further wait is this much longer
    max_wait: float = 300.0  #: seconds, no wait is longer
    #: The share of each wait that differs from step to step, 0 to 1: steps that failed together
    #: are not tried again together.
    jitter: float = 0.0
    #: The errors that are tried again, by class or name; empty: all.
    on: Errors = ()
    #: Errors that are not tried again, also if `on` names one of their base classes.
    never_on: Errors = ()

    def __post_init__(self) -> None:
        for name in ("on", "never_on"):
            object.__setattr__(self, name, _names(getattr(self, name)))

    def covers(self, kinds: Iterable[str]) -> bool:
        """Whether an error of these classes, its own and its bases, is tried again."""
        known, on, never_on = set(kinds), set(_names(self.on)), set(_names(self.never_on))
        return (not on or not known.isdisjoint(on)) and known.isdisjoint(never_on)


def _names(errors: Any) -> Any:
    """Return classes by their names, as errors are stored; anything else is checked later."""
    if isinstance(errors, str | type):
        errors = (errors,)
    if not isinstance(errors, Iterable):
        return errors
    return tuple(error.__name__ if isinstance(error, type) else error for error in errors)


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `count` tries with the same key run at a time, in all processes together.

    The key is a text with names of parameters in braces: ``"customer:{customer}"``.
    """

    key: str
    count: int


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `count` tries with the same key begin in any period of `per` seconds."""

    key: str
    count: int
    per: float | timedelta = 60.0  #: seconds

    def __post_init__(self) -> None:
        object.__setattr__(self, "per", _as_seconds(self.per))


def _as_seconds(given: Any) -> Any:
    """Return a period as seconds; anything that is none is checked later."""
    if isinstance(given, timedelta):
        return given.total_seconds()
    # 60 and 60.0 give the same content hash.
    return float(given) if isinstance(given, int) and not isinstance(given, bool) else given


@dataclass(frozen=True, slots=True)
class Cache:
    """A step whose key has a result that is not older than `max_age` completes with that result.

    The key is a text with names of parameters in braces: ``"rates:{currency}"``. Results are shared
    by all runs of a tenant, for each facet by itself.
    """

    key: str
    max_age: float | timedelta  #: seconds

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_age", _as_seconds(self.max_age))


@dataclass(frozen=True, slots=True)
class EventOptions:
    task_list: str = "default"
    retry: RetryPolicy = RetryPolicy()
    timeout: float | None = None  #: seconds without activity after which a try has failed
    max_losses: int = 3  #: most tries that end with the death of their worker
    on_loss: str = "retry"  #: "fail": a step fails if its worker dies, because its work may be done
    breaker: str = ""  #: its circuit breaker; empty: none
    limit: tuple[Limit, ...] = ()  #: a try waits until it has a place under each of them
    rate: tuple[Rate, ...] = ()
    cache: Cache | None = None  #: earlier results that a step may complete with
    #: False: its code may run again unnoticed, so a durable function records its calls together.
    effects: bool = True
    priority: int = 0  #: added to that of the run: the highest is claimed first


NO_OPTIONS = EventOptions()

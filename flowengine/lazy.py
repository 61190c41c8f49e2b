"""A value that is computed when it is first read, and kept.

`functools.cached_property` of Python 3.11 holds one lock for all objects while it computes. A fork
in that moment copies the lock, and the child waits for it for ever. Without a lock two threads may
compute a value at the same time, so it must not matter which of the two is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801 - a decorator
    """Decorates a method without arguments: its result is an attribute."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute, self._name = compute, compute.__name__
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        # A later read finds it in the object itself, and does not come here.
        value = instance.__dict__[self._name] = self._compute(instance)
        return value

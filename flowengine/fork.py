"""Callbacks around a fork.

A fork copies locks, connections and counters of threads, but not the threads. Objects that hold
such things reset them in the child. All fork hooks of the package are here: one registration.
"""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Callable

Callback = Callable[[], None]
_before: list[Callable[[], Callback | None]] = []
_in_parent: list[Callable[[], Callback | None]] = []
_in_child: list[Callable[[], Callback | None]] = []


def at_fork(
    *,
    before: Callback | None = None,
    in_parent: Callback | None = None,
    in_child: Callback | None = None,
) -> None:
    """Call these around each fork; a method only as long as its object lives.

    Before a fork the last registered is called first, after it the first registered.
    """
    for callback, registered in ((before, _before), (in_parent, _in_parent), (in_child, _in_child)):
        if callback is not None:
            registered[:] = [*(known for known in registered if known()), _reference(callback)]


def _reference(callback: Callback) -> Callable[[], Callback | None]:
    return weakref.WeakMethod(callback) if inspect.ismethod(callback) else lambda: callback


def _call(registered: list[Callable[[], Callback | None]]) -> None:
    for reference in list(registered):
        if (callback := reference()) is not None:
            callback()


os.register_at_fork(
    before=lambda: _call(_before[::-1]),
    after_in_parent=lambda: _call(_in_parent),
    after_in_child=lambda: _call(_in_child),
)

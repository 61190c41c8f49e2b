"""Tell objects that their process forks.

A fork copies locks, connections and counters of threads, but not the threads. Objects that hold
such things reset them in the child. All fork hooks of the package are here: one registration.
"""

from __future__ import annotations

import os
import weakref


class ForkAware:
    """Override what must happen around a fork."""

    def before_fork(self) -> None:
        return None

    def after_fork_in_parent(self) -> None:
        return None

    def after_fork_in_child(self) -> None:
        return None


_objects: list[weakref.ref[ForkAware]] = []


def notify_of_forks(found: ForkAware) -> None:
    """Call this object's methods around each fork, as long as it lives.

    Before a fork the objects are called last to first, after it first to last.
    """
    _objects[:] = [*(known for known in _objects if known() is not None), weakref.ref(found)]


def _living() -> list[ForkAware]:
    return [found for known in _objects if (found := known()) is not None]


def _before() -> None:
    for found in reversed(_living()):
        found.before_fork()


def _after_in_parent() -> None:
    for found in _living():
        found.after_fork_in_parent()


def _after_in_child() -> None:
    for found in _living():
        found.after_fork_in_child()


os.register_at_fork(
    before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
)

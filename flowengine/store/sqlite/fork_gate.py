"""Close SQLite connections before the process forks.

SQLite keeps the state of its file locks in the process. A fork copies that state but not the
locks: a child that was forked during a transaction finds the file locked for ever, and any other
believes that it holds locks it does not hold, so another process may remove the write-ahead log
under it. Therefore a fork waits for running transactions and closes the connections. Celery forks
a pool child whenever one has died.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from flowengine.fork import at_fork

_MAX_WAIT = 60.0  # seconds; a transaction that lasts longer hangs, and must not block the fork


class Connected(Protocol):
    """A database with connections."""

    def disconnect(self) -> None:
        """Close the connections that no thread uses."""

    def __hash__(self) -> int: ...


class ForkGate:
    """Blocks transactions during a fork. A process has one."""

    def __init__(self) -> None:
        self._databases: weakref.WeakSet[Connected] = weakref.WeakSet()
        self._changed = threading.Condition()
        self._inside: dict[int, int] = {}  #: transactions of each thread
        self._forks = 0

    def guard(self, database: Connected) -> None:
        """Close the connections of this database before each fork."""
        with self._changed:
            self._databases.add(database)

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Delay forks during a transaction. Reentrant: a nested transaction does not wait."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> None:
        """Begin to delay forks; `leave` follows."""
        me = threading.get_ident()
        with self._changed:
            if self._forks:
                self._changed.wait_for(lambda: not self._forks or me in self._inside)
            self._inside[me] = self._inside.get(me, 0) + 1

    def leave(self) -> None:
        """End what `enter` has begun."""
        me = threading.get_ident()
        with self._changed:
            self._inside[me] -= 1
            if not self._inside[me]:
                del self._inside[me]
                if self._forks:
                    self._changed.notify_all()

    def shut(self) -> None:
        """Wait for the transactions of other threads, and close the connections."""
        me = threading.get_ident()
        with self._changed:
            self._forks += 1
            self._changed.wait_for(lambda: not self._inside.keys() - {me}, _MAX_WAIT)
            for database in list(self._databases):
                database.disconnect()

    def open(self) -> None:
        with self._changed:
            self._forks -= 1
            self._changed.notify_all()

    def reset(self) -> None:
        """Reset to the one thread that a child has."""
        me = threading.get_ident()
        self._changed = threading.Condition()
        self._inside = {me: self._inside[me]} if me in self._inside else {}
        self._forks = 0


fork_gate = ForkGate()
at_fork(before=fork_gate.shut, in_parent=fork_gate.open, in_child=fork_gate.reset)

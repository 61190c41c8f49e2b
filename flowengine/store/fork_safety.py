"""No SQLite connection is open while its process forks.

SQLite keeps what it knows of its locks in the process, and a fork copies that knowledge but
not the locks. A child that was forked during a transaction believes for ever that the file is
locked. Any other believes that it holds locks it does not hold, and whoever finds the file
unlocked removes the write-ahead log under it. So a fork waits for the transactions that run,
and what is open is closed before it. Celery forks a pool child whenever one has died.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine

from flowengine.fork import ForkAware, notify_of_forks

_PATIENCE = 60.0  # seconds; a transaction that lasts longer hangs, and must not stop the fork


class ForkGate(ForkAware):
    """Lets transactions through, but for the moment of a fork. A process has one."""

    def __init__(self) -> None:
        self._engines: weakref.WeakSet[Engine] = weakref.WeakSet()
        self._changed = threading.Condition()
        self._inside: Counter[int] = Counter()
        self._forks = 0

    def guard(self, engine: Engine) -> None:
        """Have the connections of this engine closed before each fork."""
        with self._changed:
            self._engines.add(engine)

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Be inside. Who is inside already is let through: it would wait for itself."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: not self._forks or me in self._inside)
            self._inside[me] += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside[me] -= 1
                if not self._inside[me]:
                    del self._inside[me]
                    self._changed.notify_all()

    def before_fork(self) -> None:
        """Wait until nobody else is inside, and close what is open."""
        me = threading.get_ident()
        with self._changed:
            self._forks += 1
            self._changed.wait_for(lambda: not self._inside.keys() - {me}, _PATIENCE)
            for engine in list(self._engines):
                engine.dispose()

    def after_fork_in_parent(self) -> None:
        with self._changed:
            self._forks -= 1
            self._changed.notify_all()

    def after_fork_in_child(self) -> None:
        """Begin anew with the one thread that a child has."""
        me = threading.get_ident()
        self._changed = threading.Condition()
        self._inside = Counter({me: self._inside[me]} if me in self._inside else {})
        self._forks = 0


fork_gate = ForkGate()
notify_of_forks(fork_gate)

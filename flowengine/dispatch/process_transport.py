"""The in-process broker of an embedded engine: kombu's, whose consumer is woken by each message.

kombu's own consumer looks into its queues again and again. To give a run little latency it would
have to look hundreds of times a second, and take the interpreter from the threads that work. Here
a new message wakes it, and an acknowledgement, which makes room for the next one.
"""

from __future__ import annotations

import threading
import time
from queue import Empty
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, memory

from flowengine.fork import at_fork

SCHEME = "flowengine-process"  #: of the broker's URL


class _Changes:
    """Counts what a consumer may have to look at."""

    def __init__(self) -> None:
        self.begin()
        at_fork(in_child=self.begin)

    def begin(self) -> None:
        self._changed, self.count = threading.Condition(threading.Lock()), 0

    def add(self) -> None:
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    def wait(self, seen: int, seconds: float) -> None:
        """Wait until there are more than those that were seen."""
        with self._changed:
            self._changed.wait_for(lambda: self.count != seen, seconds)


_changes = _Changes()  # of all queues: kombu's are shared by the whole process, too


class Channel(memory.Channel):  # type: ignore[misc]
    """A channel that tells consumers of its messages."""

    def _put(self, queue: str, message: Any, **options: Any) -> None:
        super()._put(queue, message, **options)
        _changes.add()

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        super().basic_ack(delivery_tag, multiple)
        _changes.add()


class Transport(memory.Transport):  # type: ignore[misc]
    """A transport that sleeps until there is something to do."""

    Channel = Channel

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver a message; raises TimeoutError if none comes in time."""
        ends = None if timeout is None else time.monotonic() + timeout
        while True:
            seen = _changes.count
            try:
                self.cycle.get(self._deliver, timeout=timeout)
                return
            except Empty:
                left = self.polling_interval
                if ends is not None and (left := min(left, ends - time.monotonic())) <= 0:
                    raise TimeoutError from None
            _changes.wait(seen, left)


TRANSPORT_ALIASES[SCHEME] = f"{__name__}:Transport"

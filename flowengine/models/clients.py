"""The clients of a provider's package: one for each process, and one for each event loop.

A connection must not be shared with a forked child, nor by two event loops.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

S = TypeVar("S")
A = TypeVar("A")


class Clients(Generic[S, A]):
    def __init__(self, make: Callable[[], S], make_async: Callable[[], A]) -> None:
        self._make, self._make_async = make, make_async
        self._lock = threading.Lock()
        self._begin(os.getpid())

    def _begin(self, pid: int) -> None:
        self._pid = pid
        self._sync: S | None = None
        self._async: WeakKeyDictionary[Any, A] = WeakKeyDictionary()

    def sync(self) -> S:
        with self._lock:
            if self._pid != os.getpid():
                self._begin(os.getpid())
            if self._sync is None:
                self._sync = self._make()
            return self._sync

    def of_loop(self) -> A:
        """Return the client of the running event loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._pid != os.getpid():
                self._begin(os.getpid())
            if (found := self._async.get(loop)) is None:
                found = self._async[loop] = self._make_async()
            return found

    def close(self) -> None:
        """Close the connections of blocking calls."""
        with self._lock:
            client: Any = self._sync
            self._sync = None
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        with self._lock:
            client: Any = self._async.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

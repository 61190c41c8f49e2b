"""Log lines about messages that somebody may send in any number: one a minute of each kind."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable

#: Seconds between two lines of a kind.
_INTERVAL = 60.0


class RareLines:
    """Counts what happens, and says when a line about it is due. For one thread at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged: dict[str, float] = {}
        self._unlogged = Counter[str]()

    def due(self, kind: str = "") -> int:
        """Count one more; return the number since the last line if the next one is due, else 0."""
        self._unlogged[kind] += 1
        now = self._clock()
        if now - self._logged.get(kind, -math.inf) < _INTERVAL:
            return 0
        self._logged[kind] = now
        return self._unlogged.pop(kind)

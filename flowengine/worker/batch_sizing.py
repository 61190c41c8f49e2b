"""How long the facets of this process take, so that quick ones can be taken together.

A facet is known to be quick after some tries that were. A slow one makes it careful: what is
taken together with a slow try waits behind it until the guard takes it away. So for a while
the number taken at once begins at one again, and grows with the tries that are quick. A facet
that is now quick and now slow is taken in small numbers, one that is mostly slow alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_ENOUGH = 2  # tries before a facet is known
_WEIGHT = 0.2  # of the latest try in the average
_SLOW = 10.0  # times as long as quick is: such a try is slow
_MEMORY = 10.0  # seconds for which a slow try is remembered
_GROWTH = 3  # tries that are taken for each one in a row that was quick


@dataclass(slots=True)
class _Facet:
    average: float  #: of the tries that were not slow
    tries: int = 0
    in_a_row: int = 0  #: tries since the last slow one
    last_slow: float = -math.inf


class BatchSizing:
    """What is known of each facet. Threads may miscount a little: it is an estimate."""

    def __init__(self, quick_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._quick, self._clock = quick_seconds, clock
        self._facets: dict[str, _Facet] = {}

    def count(self, name: str, seconds: float) -> None:
        is_slow = seconds > self._quick * _SLOW
        facet = self._facets.get(name)
        if facet is None:
            facet = self._facets[name] = _Facet(0.0 if is_slow else seconds)
        facet.tries += 1
        if is_slow:
            facet.in_a_row, facet.last_slow = 0, self._clock()
        else:
            before = facet.average or seconds  # nothing, when all tries so far were slow
            facet.average = before + (seconds - before) * _WEIGHT
            facet.in_a_row += 1

    def is_quick(self, name: str) -> bool:
        facet = self._facets.get(name)
        if facet is None or facet.tries < _ENOUGH:
            return False
        return facet.in_a_row > 0 and facet.average <= self._quick

    def quick(self, names: Iterable[str], last: str = "") -> list[str]:
        """Those that may be taken together, after that one was taken last.

        Of those that were slow a while ago only that one: a few are taken where it is around,
        and it does not make all others few.
        """
        found = [name for name in names if self.is_quick(name)]
        return [name for name in found if name == last or not self._was_slow(name)]

    def fitting(self, names: Iterable[str], seconds: float) -> int:
        """How many tries of these facets to take at once, for so much time at most."""
        names = list(names)
        slowest = max((self._facets[name].average for name in names), default=0.0)
        if not slowest:
            return 1
        rows = [self._facets[name].in_a_row for name in names if self._was_slow(name)]
        fitting = int(seconds / slowest)
        return max(1, min(fitting, _GROWTH * min(rows)) if rows else fitting)

    def _was_slow(self, name: str) -> bool:
        return self._facets[name].last_slow > self._clock() - _MEMORY

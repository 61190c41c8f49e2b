"""Batch sizing: how many tasks of a facet to claim together, from their measured duration.

A facet is quick after some quick tries. Tasks that are claimed together with a slow one wait
behind it until the batch guard releases them. So after a slow try the batch size of its facet
begins at one again, and grows with each quick try. A facet of mixed duration is claimed in small
batches, a mostly slow one in batches of one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_ENOUGH = 2  # tries before a facet can be quick
_WEIGHT = 0.2  # of the latest try in the moving average
_SLOW = 10.0  # a try of more than so many times `quick_seconds` is slow
_MEMORY = 10.0  # seconds for which a slow try is remembered
_GROWTH = 3  # tasks of a batch for each consecutive quick try


@dataclass(slots=True)
class _Facet:
    average: float  #: seconds, without slow tries
    tries: int = 0
    in_a_row: int = 0  #: tries since the last slow one
    last_slow: float = -math.inf


class BatchSizing:
    """Durations by facet. It takes no lock: threads may miscount, and it is an estimate."""

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
            before = facet.average or seconds  # 0 if all tries so far were slow
            facet.average = before + (seconds - before) * _WEIGHT
            facet.in_a_row += 1

    def is_quick(self, name: str) -> bool:
        facet = self._facets.get(name)
        if facet is None or facet.tries < _ENOUGH:
            return False
        return facet.in_a_row > 0 and facet.average <= self._quick

    def quick(self, names: Iterable[str], last: str = "") -> list[str]:
        """Return the facets whose tasks may be claimed together, `last` being claimed last.

        A facet with a recent slow try is among them only if it is `last`: it makes batches small,
        and the batches of other facets need not be.
        """
        quick = [name for name in names if self.is_quick(name)]
        return [name for name in quick if name == last or not self._was_slow(name)]

    def fitting(self, names: Iterable[str], seconds: float) -> int:
        """How many tasks of these facets to claim together, for so many seconds at most."""
        names = list(names)
        slowest = max((self._facets[name].average for name in names), default=0.0)
        if not slowest:
            return 1
        rows = [self._facets[name].in_a_row for name in names if self._was_slow(name)]
        fitting = int(seconds / slowest)
        return max(1, min(fitting, _GROWTH * min(rows)) if rows else fitting)

    def _was_slow(self, name: str) -> bool:
        return self._facets[name].last_slow > self._clock() - _MEMORY

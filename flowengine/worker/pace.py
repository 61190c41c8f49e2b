"""How long the facets of this process take, so that quick ones can be taken together.

A facet is known to be quick after some tries that were. One slow try is enough to forget
it: what is taken together with a slow try would wait behind it.
"""

from __future__ import annotations

from collections.abc import Iterable

_ENOUGH = 2  # tries before a facet is known
_WEIGHT = 0.2  # of the latest try in the average
_SLOW = 10.0  # times as long as quick is: such a try begins the count anew


class Pace:
    """A moving average per facet. Threads may miscount a little: it is an estimate."""

    def __init__(self, quick_seconds: float) -> None:
        self._quick = quick_seconds
        self._averages: dict[str, tuple[int, float]] = {}

    def count(self, name: str, seconds: float) -> None:
        tries, average = self._averages.get(name, (0, seconds))
        if seconds > self._quick * _SLOW:
            self._averages[name] = (0, seconds)
        else:
            average += (seconds - average) * _WEIGHT
            self._averages[name] = (tries + 1, average)

    def is_quick(self, name: str) -> bool:
        tries, average = self._averages.get(name, (0, 0.0))
        return tries >= _ENOUGH and average <= self._quick

    def quick(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if self.is_quick(name)]

    def fitting(self, names: Iterable[str], seconds: float) -> int:
        """How many tries of these facets fit into so much time, the slowest of them counted."""
        slowest = max((self._averages[name][1] for name in names), default=0.0)
        return max(1, int(seconds / slowest)) if slowest else 1

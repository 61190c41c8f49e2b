"""Hints at the most similar name, at a bounded cost.

A comparison takes some ten microseconds. A program with a thousand misspelt calls of a thousand
facets would compare for a minute, so only the first problems get a hint.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_MAX_HINTS = 20
_MAX_CANDIDATES = 2_000  # compared for one hint
_MAX_LENGTH = 100  # of a name: the cost of a comparison grows with the square


class Suggestions:
    """The hints for the problems of one program or one start."""

    def __init__(self) -> None:
        self._left = _MAX_HINTS

    def near(self, name: str, known: Iterable[str]) -> str:
        """Return a hint at the most similar name, or nothing."""
        if self._left <= 0 or len(name) > _MAX_LENGTH:
            return ""
        self._left -= 1
        short: dict[str, str] = {}
        candidates: list[str] = []
        for candidate in known:
            if len(candidates) >= _MAX_CANDIDATES:
                break
            if len(candidate) <= _MAX_LENGTH:
                last = candidate.rpartition(".")[2]
                short[last] = candidate
                candidates += [candidate, last]
        near = get_close_matches(name, candidates, n=1)
        return f"; did you mean {short.get(near[0], near[0])!r}?" if near else ""

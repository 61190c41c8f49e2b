"""Paths for readers: the repeated part of a loop by recursion is written once."""

from __future__ import annotations

import re

_PART = re.compile(r"\.[^.\[]*|\[[^\]]*\]?|^[^.\[]+")
_MIN_REPEATS = 4
_MAX_UNIT = 12  #: parts that one round adds to a path


def shown_path(path: str) -> str:
    """Return a path with repetitions folded: ``loop(.when[case-0].loop)×199.work``.

    It is for terminals and pages; stored paths, the API and ``--json`` have the whole one.
    """
    parts = _PART.findall(path)
    shown: list[str] = []
    at = 0
    while at < len(parts):
        size, count = _repetition(parts, at)
        unit = "".join(parts[at : at + size])
        shown.append(unit if count < _MIN_REPEATS else f"({unit})×{count}")
        at += size * count if count >= _MIN_REPEATS else size
    folded = "".join(shown)
    return folded if len(folded) < len(path) else path


def _repetition(parts: list[str], at: int) -> tuple[int, int]:
    """Return the parts of the unit that is repeated from here on, and how often; else (1, 1)."""
    for size in range(1, _MAX_UNIT + 1):
        unit, count = parts[at : at + size], 1
        while parts[at + size * count : at + size * (count + 1)] == unit:
            count += 1
        if count >= _MIN_REPEATS:
            return size, count
    return 1, 1

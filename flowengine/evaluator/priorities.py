"""The rank of a task: its place in the order of claims, with a priority that ages.

A task of priority 0 ranks by its due time; each point of priority puts it ahead by the seconds of
`priority_aging`. So a task waits behind later ones of a higher priority for a bounded time, and an
endless stream of them does not starve it. The rank is written once and never changed: claims read
it in the order of their index.
"""

from __future__ import annotations

_ORIGIN = 1_577_836_800  # 2020: seconds since then fit a column of 32 bits until 2056, with a head
_FARTHEST = 1_000_000_000  # seconds that a priority puts a task ahead or back, about 31 years
_SMALLEST, _LARGEST = -(2**31), 2**31 - 1


def rank_of(priority: int, due: int, aging: float) -> int:
    """Return the rank of a task that is due at that time; the lowest is claimed first."""
    seconds = due // 1000 - _ORIGIN
    if priority:
        ahead = round(max(-_FARTHEST, min(priority * aging, _FARTHEST)))
        seconds -= ahead
    elif 0 <= seconds <= _LARGEST:
        return seconds
    return max(_SMALLEST, min(seconds, _LARGEST))

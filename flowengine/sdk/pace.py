"""The pace of a poller: how long it waits until it asks for tasks again. Pure.

A poller that worked a moment ago asks again soon, and then less and less often. A poller that
PostgreSQL notifies need not ask: it does so twice a minute, should a notification be lost. While it
is new, the processes that create tasks may not know of it; so for some seconds it asks more often.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_FIRST = 0.02  # seconds, after work
_GROWTH = 1.5
#: Seconds between two polls of an idle poller that is notified.
NOTIFIED_SECONDS = 30.0


class PollPace:
    def __init__(
        self, longest: float, new_for: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`longest` are the seconds between two polls of an idle poller that is not notified."""
        self._longest, self._clock = longest, clock
        self._known_from = clock() + new_for
        self._interval = min(_FIRST, longest)

    def worked(self) -> None:
        self._interval = min(_FIRST, self._longest)

    def pause(self, *, is_notified: bool) -> float:
        """Return the seconds until the next poll, after one."""
        if is_notified and self._clock() >= self._known_from:
            return max(NOTIFIED_SECONDS, self._longest)
        pause = self._longest if is_notified else self._interval
        self._interval = min(self._interval * _GROWTH, self._longest)
        return pause

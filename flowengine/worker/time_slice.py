"""Time slices: how long a worker goes on with the tasks that its own reports make ready.

A task that goes to another process costs a message, a claim and the state of its run; a durable
function is replayed there. So a slice may be followed by the next one while no other task is due:
nobody would gain anything. After ten of them it ends, because messages may wait that the worker
does not see: to evaluate another run, or of other tasks of the Celery application. After a task
that took longer than a slice it ends too: the cost of a move is small beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_MOST = 10  #: slices in a row


class TimeSlice:
    """The slice of one thread."""

    def __init__(
        self,
        seconds: float,
        others_wait: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`others_wait` is called when the seconds are over; without it no other slice follows."""
        now = clock()
        self._seconds, self._others_wait, self._clock = seconds, others_wait, clock
        self._ends, self._last_end = now + seconds, now + _MOST * seconds

    def prolong(self, seconds: float) -> None:
        """End later by as many seconds: they were spent on something else."""
        self._ends += seconds
        self._last_end += seconds

    @property
    def has_elapsed(self) -> bool:
        """Whether the slice is over for a worker that knows of due tasks."""
        return self._clock() > self._ends

    def is_over(self) -> bool:
        """Whether the worker should leave new tasks to whoever is free."""
        now = self._clock()
        if now <= self._ends:
            return False
        is_late = now > min(self._ends + self._seconds, self._last_end)
        if is_late or self._others_wait():
            self._last_end = self._ends  # for good
            return True
        self._ends = min(now + self._seconds, self._last_end)
        return False

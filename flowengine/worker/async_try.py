"""The try of an async facet: its coroutine on the event loop, and its timeout.

The timeout is a timer of the loop. Recovery could only kill the process, with all its coroutines;
it still does if the loop is blocked, so that no timer runs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from flowengine.evaluator.triggers import Outcome
from flowengine.event_loop import LoopCall
from flowengine.worker.claimed_tasks import ClaimedTask
from flowengine.worker.execution import Attempt

log = logging.getLogger("flowengine")

_UNWIND_SECONDS = 0.2  # between the cancellation of a coroutine at its timeout and the report


class Timeout(TimeoutError):
    """A coroutine showed no activity for longer than its timeout; recovery reports the same."""


class AsyncTry(LoopCall):
    """A try whose coroutine runs."""

    def __init__(
        self,
        entry: ClaimedTask,
        attempt: Attempt,
        awaitable: Awaitable[Any],
        at_end: Callable[[AsyncTry], object],
    ) -> None:
        super().__init__(awaitable, at_end)
        self.entry, self.attempt = entry, attempt
        self.began = attempt.last_sign = time.monotonic()
        self.is_adopted = self.is_queued = False  #: by the thread of async tries; for it
        self.has_lost_lease = False
        self.is_dropped = False  #: its outcome is not reported
        self._has_timed_out = self._ignores_cancellation = False

    @property
    def timeout(self) -> float:
        """In seconds; 0: none."""
        return (self.entry.task.timeout_ms or 0) / 1000

    @property
    def is_over(self) -> bool:
        """Whether it has an outcome."""
        return self.has_ended() or self._ignores_cancellation

    def outcome(self) -> Outcome:
        """Return the outcome of a try that is over."""
        return self.attempt.end(self._timed_out if self._has_timed_out else self.result)

    def _timed_out(self) -> NoReturn:
        raise Timeout(f"no activity for more than its timeout of {self.timeout:g} s")

    # --- in the loop ---

    def check_timeout(self, at_end: Callable[[AsyncTry], object]) -> None:
        """Cancel the coroutine when its timeout is over; `at_end` is called if it goes on."""
        if self.has_ended():
            return
        loop = asyncio.get_running_loop()
        left = self.attempt.last_sign + self.timeout - time.monotonic()
        if left > 0:
            loop.call_later(left, self.check_timeout, at_end)
            return
        self._has_timed_out = True
        self.cancel()
        loop.call_later(_UNWIND_SECONDS, self._give_up, at_end)

    def _give_up(self, at_end: Callable[[AsyncTry], object]) -> None:
        """End the try without the end of its coroutine: a timeout must not last longer."""
        if self.has_ended():
            return
        task = self.entry.task
        log.warning(
            "the coroutine of %s goes on after its timeout: it does not end when it is cancelled; "
            "let it raise asyncio.CancelledError",
            task.step_path,
            extra={
                "action": "cancellation_ignored",
                "run": task.workflow_id,
                "facet": task.name,
            },
        )
        self._ignores_cancellation = True
        at_end(self)

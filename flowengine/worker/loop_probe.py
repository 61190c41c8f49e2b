"""The probe of the event loop: it finds and names a facet that keeps the loop from turning."""

from __future__ import annotations

import logging
import time

from flowengine.event_loop import event_loop

log = logging.getLogger("flowengine")


class LoopProbe:
    """Asks the loop for a turn, and notes the answer."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: for how long a loop that turns may not answer."""
        self._seconds = seconds
        self._asked: float | None = None
        self._is_reported = False

    def check(self, others: int) -> None:
        """Log the facet that blocks the loop, once; `others` coroutines wait for it."""
        seconds = self._blocked_for()
        if not seconds:
            return
        step, where = event_loop().current()
        if step is None and "selectors.py" in where:
            return  # it waits: the machine is busy, or the probe was answered just now
        log.warning(
            "%s blocks the event loop for %.1f s at %s: the %d other async tries of this process "
            "wait; await what it does, or call it with asyncio.to_thread",
            f"{step.facet} ({step.path})" if step else "code of an async facet",
            seconds,
            where,
            others,
            extra={
                "action": "event_loop_blocked",
                **({"run": step.run_id, "facet": step.facet} if step else {}),
            },
        )

    def _blocked_for(self) -> float:
        """Return for how long the loop has not turned, once for each time; 0: it turns."""
        asked = self._asked
        if asked is None:
            self._asked = time.monotonic()
            event_loop().call(self._answer)
            return 0.0
        silence = time.monotonic() - asked
        if silence < self._seconds or self._is_reported:
            return 0.0
        self._is_reported = True
        return silence

    def _answer(self) -> None:
        self._asked, self._is_reported = None, False

"""Counting that cannot disturb what is counted."""

from __future__ import annotations

import logging
from collections.abc import Callable

from flowengine.messaging.interfaces import MessageMetrics

_log = logging.getLogger(__name__)


class Counting:
    """Passes numbers on to a `MessageMetrics`; what it raises is logged, once."""

    def __init__(self, sink: MessageMetrics | None) -> None:
        self._sink = sink
        self._told = False

    def sent(self, taken: int, refused: int) -> None:
        if taken:
            self._tell(lambda sink: sink.inc_delivered_ok(taken))
        if refused:
            self._tell(lambda sink: sink.inc_delivered_error(refused))

    def nacked(self, wait: float | None) -> None:
        """`wait` is in seconds; None: it became a dead letter."""
        self._tell(lambda sink: sink.inc_nacks(1))
        if wait is None:
            self.buried(1)
        else:
            self._tell(lambda sink: sink.inc_retries_scheduled(1, wait))

    def buried(self, count: int) -> None:
        if count:
            self._tell(lambda sink: sink.inc_permanent(count))

    def _tell(self, tell: Callable[[MessageMetrics], None]) -> None:
        if self._sink is None:
            return
        try:
            tell(self._sink)
        except Exception:
            if not self._told:
                self._told = True
                _log.warning(
                    "the metrics of messages cannot be counted; messages are not disturbed",
                    exc_info=True,
                    extra={"action": "metrics_failed"},
                )

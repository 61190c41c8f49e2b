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
        if self._sink is not None:
            if taken:
                self._pass_on(self._sink.inc_delivered_ok, taken)
            if refused:
                self._pass_on(self._sink.inc_delivered_error, refused)

    def nacked(self, wait: float | None) -> None:
        """`wait` is in seconds; None: it became a dead letter."""
        if self._sink is not None:
            self._pass_on(self._sink.inc_nacks, 1)
            if wait is not None:
                self._pass_on(self._sink.inc_retries_scheduled, 1, wait)
            else:
                self.buried(1)

    def buried(self, count: int) -> None:
        if self._sink is not None and count:
            self._pass_on(self._sink.inc_permanent, count)

    def _pass_on(self, method: Callable[..., None], *arguments: float) -> None:
        try:
            method(*arguments)
        except Exception:
            if not self._told:
                self._told = True
                _log.warning(
                    "the metrics of messages cannot be counted; messages are not disturbed",
                    exc_info=True,
                    extra={"action": "metrics_failed"},
                )

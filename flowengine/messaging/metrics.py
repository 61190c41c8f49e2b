"""Recording of metrics: an error in the sink never affects a delivery."""

from __future__ import annotations

from collections.abc import Callable

from flowengine.log_filter import safe_logger
from flowengine.messaging.interfaces import MessageMetrics

_log = safe_logger(__name__)


class MetricsRecorder:
    """Passes counts to a `MessageMetrics`; logs its first error."""

    def __init__(self, sink: MessageMetrics | None) -> None:
        self._sink = sink
        self._error_logged = False

    def sent(self, delivered: int, refused: int) -> None:
        if delivered:
            self._record(lambda sink: sink.inc_delivered_ok(delivered))
        if refused:
            self._record(lambda sink: sink.inc_delivered_error(refused))

    def nacked(self, backoff: float | None) -> None:
        """`backoff` in seconds; None if the message became a dead letter."""
        self._record(lambda sink: sink.inc_nacks(1))
        if backoff is None:
            self.dead_lettered(1)
        else:
            self._record(lambda sink: sink.inc_retries_scheduled(1, backoff))

    def dead_lettered(self, count: int) -> None:
        if count:
            self._record(lambda sink: sink.inc_permanent(count))

    def _record(self, record: Callable[[MessageMetrics], None]) -> None:
        if self._sink is None:
            return
        try:
            record(self._sink)
        except Exception:
            if not self._error_logged:
                self._error_logged = True
                _log.warning(
                    "a metrics sink raised: counts of messages are lost, deliveries go on",
                    exc_info=True,
                    extra={"action": "metrics_failed"},
                )

"""SIGTERM and SIGINT of a service: the first one stops it, the second one ends the process."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

log = logging.getLogger("flowengine")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopped_by_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` at the first signal, in the main thread alone: no other one can handle signals.

    From then on, and at the end, the handlers that were there before are in force again: with
    Python's own, a second SIGTERM ends the process at once, a second SIGINT raises
    KeyboardInterrupt.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous: dict[signal.Signals, Any] = {}

    def restore() -> None:
        while previous:
            number, handler = previous.popitem()
            # None: it was not installed from Python, and cannot be restored from there.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def on_signal(number: int, _: FrameType | None) -> None:
        restore()
        log.info(
            "%s: the service finishes its running handlers and stops; a second signal ends it",
            signal.Signals(number).name,
            extra={"action": "service_stopping"},
        )
        stop()

    for number in _SIGNALS:
        previous[number] = signal.signal(number, on_signal)
    try:
        yield
    finally:
        restore()

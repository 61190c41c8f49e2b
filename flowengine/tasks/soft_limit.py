"""The soft time limit of a task: SoftTimeLimitExceeded is raised in its code, which may handle it.

In the main thread of a process a signal interrupts the code, also while it waits. In another thread
the exception is raised when the code returns to Python.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from celery.exceptions import SoftTimeLimitExceeded

_SIGNAL = getattr(signal, "SIGUSR1", None)  #: Celery's own signal for soft limits in pool children
_lock = threading.Lock()
_before: Any = None  #: the handler that was there; of a pool child it is Celery's
_expired: SoftLimit | None = None  #: the limit for which a signal is under way


class SoftLimit:
    """Inside, the thread gets SoftTimeLimitExceeded after so many seconds, once."""

    def __init__(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._expire)
        self._timer.daemon = True
        self._thread = threading.get_ident()
        self._is_over = False

    def __enter__(self) -> Self:
        self._uses_signal = _handle_signal()
        self._timer.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _problem: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        with _lock:  # a signal that is sent later would interrupt other code
            self._is_over = True
        self._timer.cancel()

    @property
    def is_over(self) -> bool:
        return self._is_over

    def _expire(self) -> None:
        global _expired
        with _lock:
            if self._is_over:
                return
            if self._uses_signal and _SIGNAL is not None:
                _expired = self
                signal.pthread_kill(self._thread, _SIGNAL)
            else:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread), ctypes.py_object(SoftTimeLimitExceeded)
                )


def _handle_signal() -> bool:
    """Handle the signal in this process; False: this is not its main thread."""
    global _before
    if _SIGNAL is None or threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(_SIGNAL) is not _raise:
        _before = signal.signal(_SIGNAL, _raise)
    return True


def _raise(number: int, frame: FrameType | None) -> None:
    global _expired
    limit, _expired = _expired, None
    if limit is None:  # not ours: a limit that Celery sets for the whole message
        if callable(_before):
            _before(number, frame)
    elif not limit.is_over:
        raise SoftTimeLimitExceeded

"""The soft time limit of a task: SoftTimeLimitExceeded is raised in its code, which may handle it.

In the main thread of a process a signal interrupts the code, also while it waits. In another thread
the exception is raised when the code returns to Python.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from celery.exceptions import SoftTimeLimitExceeded

_SIGNAL = getattr(signal, "SIGUSR1", None)  #: Celery's own signal for soft limits in pool children
_AGAIN = 0.005  #: seconds until a limit that met the engine is raised again
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
        self._caller = sys._getframe(1)
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
        del self._caller

    @property
    def is_over(self) -> bool:
        return self._is_over

    def expire_soon(self) -> None:
        """Try again: an exception within the engine, as in a heartbeat, might be lost there."""
        self._timer = threading.Timer(_AGAIN, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def is_in_engine(self, frame: FrameType | None) -> bool:
        """Whether the code has called the engine, which is now running."""
        while frame is not None and frame is not self._caller:
            if frame.f_globals.get("__name__", "").startswith("flowengine."):
                return True
            frame = frame.f_back
        return False

    def _expire(self) -> None:
        global _expired
        with _lock:
            if self._is_over:
                return
            if self._uses_signal and _SIGNAL is not None:
                _expired = self
                signal.pthread_kill(self._thread, _SIGNAL)
            elif self.is_in_engine(sys._current_frames().get(self._thread)):
                self.expire_soon()
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
    elif limit.is_over:
        return
    elif limit.is_in_engine(frame):
        limit.expire_soon()
    else:
        raise SoftTimeLimitExceeded

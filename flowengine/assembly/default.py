"""The engine of this process, made when it is first needed."""

from __future__ import annotations

import os
import threading

from flowengine.assembly.embedded import Embedded
from flowengine.assembly.launcher import EngineLauncher
from flowengine.engine import Engine
from flowengine.settings import Settings

_lock = threading.Lock()
_embedded: Embedded | None = None


def default_engine() -> Engine:
    """Return the embedded engine of this process; the first call opens it."""
    global _embedded
    with _lock:
        if _embedded is None:
            _embedded = Embedded(Settings.from_environment())
        return _embedded.engine


def close_default_engine() -> None:
    """Close it, if it was opened; the next start opens another."""
    global _embedded
    with _lock:
        embedded, _embedded = _embedded, None
    if embedded is not None:
        embedded.close()


def _forget_in_child() -> None:
    """A forked child has none of its parent's threads; `embedded` sees to what it inherits."""
    global _embedded, _lock
    _embedded, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)


def default_launcher() -> EngineLauncher:
    return EngineLauncher(default_engine())

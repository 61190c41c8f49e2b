"""The default engine of this process, created on first use."""

from __future__ import annotations

import threading

from flowengine.assembly.embedded import Embedded
from flowengine.assembly.launcher import EngineLauncher
from flowengine.engine import Engine
from flowengine.fork import at_fork
from flowengine.settings import Settings

_lock = threading.Lock()
_embedded: Embedded | None = None


def default_engine() -> Engine:
    """Return the embedded engine of this process; the first call creates it."""
    global _embedded
    with _lock:
        if _embedded is None:
            _embedded = Embedded(Settings.from_environment())
        return _embedded.engine


def close_default_engine() -> None:
    """Close the default engine, if there is one; the next start creates another."""
    global _embedded
    with _lock:
        embedded, _embedded = _embedded, None
    if embedded is not None:
        embedded.close()


def _forget_in_child() -> None:
    """Drop the engine in a forked child, which does not inherit its threads."""
    global _embedded, _lock
    _embedded, _lock = None, threading.Lock()


at_fork(in_child=_forget_in_child)


def default_launcher() -> EngineLauncher:
    return EngineLauncher(default_engine())

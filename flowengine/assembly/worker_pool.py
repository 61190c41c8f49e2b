"""The pool of a Celery worker: steps run in processes and threads, not in greenlets.

libpq and SQLite wait in C, where no other greenlet of the process runs. A greenlet that waits for
the lock of a row stops the greenlet that holds it, and neither goes on. So a worker with a pool of
greenlets takes no part in runs; it may serve other queues of the app.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable

_GREENLETS = {"celery.concurrency.gevent": "gevent", "celery.concurrency.eventlet": "eventlet"}


def takes_part(pool: type, queues: Iterable[str]) -> bool:
    """Return whether a worker with this pool runs steps.

    Ends the process if it would consume `queues`, which are those of steps and of the engine.
    """
    greenlets = _GREENLETS.get(pool.__module__)
    if greenlets is None:
        return True
    if names := ", ".join(sorted(queues)):
        raise SystemExit(
            f"flowengine does not run steps in the pool {greenlets!r}: a greenlet that waits for "
            "the database stops all others, also the one it waits for. Start this worker with "
            "--pool prefork, threads or solo. A worker for other tasks of the app may have this "
            f"pool, with a -Q that does not name: {names}"
        )
    return False


def executes_message() -> bool:
    """Return whether Celery executes a message in this pool child, which it does in one thread.

    For a child whose worker is gone; while the worker lives, the worker knows.
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_globals.get("__name__") != "celery.app.trace":
        frame = frame.f_back
    return frame is not None

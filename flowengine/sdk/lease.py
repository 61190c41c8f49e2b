"""Keep the lease of a step while code runs that sends no heartbeats."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from flowengine.worker.step_context import StepContext


@contextmanager
def kept_alive(step: StepContext, every: float, most: float | None) -> Iterator[None]:
    """Send heartbeats for a step while code runs that sends none, for `most` seconds at most.

    After that its silence counts: a facet with a timeout is taken for hanging.
    """
    ended = threading.Event()
    ends = None if most is None else time.monotonic() + most

    def beat() -> None:
        while not ended.wait(every):
            if ends is not None and time.monotonic() > ends:
                return
            if not step.heartbeat():
                return  # the cancel token is set

    thread = threading.Thread(target=beat, name="flowengine-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()

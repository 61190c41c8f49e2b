"""A facet whose tries wait for a file: a test decides how long they run."""

from __future__ import annotations

import os
import time
from pathlib import Path

from flowengine import event_facet, workflow


@event_facet(name="gated.work", max_losses=1000)
def work(gate: str) -> int:
    """Return the process of the worker whose pool child has run this."""
    path = Path(os.environ["TRACES"]) / gate
    while gate and not path.exists():
        time.sleep(0.02)
    return os.getppid()


@workflow(name="gated.one")
def one(gate: str) -> int:
    return work(gate)

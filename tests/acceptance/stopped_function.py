"""A worker that is stopped inside a call in place, for the test of its revival."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path

from flowengine import event_facet, workflow
from flowengine.authoring import event_facet_names
from flowengine.settings import Settings
from flowengine.store.claims import WorkerIdentity
from flowengine.worker import TaskWorker
from tests.integration.engines import opened


@event_facet
def pay(n: int) -> int:
    place = os.environ.get("STOPPED")
    if place and n == 3:
        Path(place).write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    return n + 1


@workflow
async def payments(count: int) -> int:
    n = 0
    for _ in range(count):
        n = await pay(n)
    return n


SETTINGS = {"quick_seconds": 1.0, "batch_max_wait": 60.0, "worker_time_slice": 60.0}


def work_and_stop(url: str, directory: str) -> None:
    """Work on everything that is due; stop inside the third call."""
    lines = logging.FileHandler(Path(directory, "log"))
    logging.getLogger("flowengine").addHandler(lines)
    logging.getLogger("flowengine").setLevel(logging.INFO)
    settings = Settings(**SETTINGS, spool_directory=directory, heartbeat_interval=3_600)
    with opened(url, settings=settings) as engine:
        worker = TaskWorker(engine, WorkerIdentity("z", "z" * 32, os.getpid()), event_facet_names)
        for _ in range(3):
            worker._tries._activations._policy.sizing.count(pay.name, 1e-6)  # it is quick
        os.environ["STOPPED"] = str(Path(directory, "stopped"))
        worker.drain("default")
        worker.end()

"""A worker in the thread of the test, with an engine of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flowengine.assembly.launcher import EngineLauncher
from flowengine.authoring import StartOptions, Workflow, event_facet_names
from flowengine.engine import Engine, Run
from flowengine.engine.recovery import evaluate_reported_runs, fire_due_timers
from flowengine.settings import Settings
from flowengine.store.claims import WorkerIdentity
from flowengine.worker import TaskWorker
from tests.integration.engines import MovedClock, opened


@dataclass
class Worked:
    """An engine, and a worker that works when the test says so."""

    engine: Engine
    worker: TaskWorker
    clock: MovedClock

    def start(self, flow: Workflow[..., Any], *args: Any) -> Run[Any]:
        return EngineLauncher(self.engine).start(flow, flow.inputs(*args), StartOptions())

    def settle(self) -> None:
        """Work until nothing is due."""
        while self.worker.drain("default"):
            pass

    def run(self, flow: Workflow[..., Any], *args: Any) -> Any:
        run = self.start(flow, *args)
        self.settle()
        return run.result(timeout=0)

    def pass_time(self, seconds: float) -> None:
        """Move the clock, and let timers and tasks that are due go on."""
        self.clock.now += round(seconds * 1000)
        fire_due_timers(self.engine)
        evaluate_reported_runs(self.engine)
        self.settle()


#: Settings with which no call is made in place, and every quick one is.
WITH_TASKS = {"quick_seconds": 1e-9}
IN_PLACE = {"quick_seconds": 1.0, "batch_max_wait": 60.0, "worker_time_slice": 60.0}


@contextmanager
def worked(url: str, directory: Any, **settings: Any) -> Iterator[Worked]:
    # The guard of batches would report a try in its own thread, after the test has read the rows.
    given = {
        "heartbeat_interval": 3_600,
        "batch_max_wait": 60.0,
        "spool_directory": str(directory),
        **settings,
    }
    clock = MovedClock()
    with opened(url, settings=Settings(**given), clock=clock) as engine:
        worker = TaskWorker(engine, WorkerIdentity("s", "b" * 32, 1), event_facet_names)
        try:
            yield Worked(engine, worker, clock)
        finally:
            worker.end()

"""The worker: claims tasks, runs their facets, reports. It knows nothing of Celery."""

from flowengine.worker.circuits import Circuits
from flowengine.worker.context import NotInAStep, StepContext, current_step
from flowengine.worker.draining import Drainer
from flowengine.worker.spool import Spool
from flowengine.worker.trying import run_try

__all__ = ["Circuits", "Drainer", "NotInAStep", "Spool", "StepContext", "current_step", "run_try"]

"""The worker: claims, executes and reports tasks. It does not know Celery."""

from flowengine.worker.breakers import CircuitBreakers
from flowengine.worker.cancel_token import CancelToken
from flowengine.worker.step_context import NotInAStep, StepContext, current_step
from flowengine.worker.task_worker import TaskWorker

__all__ = [
    "CancelToken",
    "CircuitBreakers",
    "NotInAStep",
    "StepContext",
    "TaskWorker",
    "current_step",
]

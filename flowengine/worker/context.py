"""The context of the step that a facet is called for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from flowengine.errors import FlowengineError
from flowengine.evaluator import TaskDefinition


class NotInAStep(FlowengineError):
    """The code is not called by a worker for a step."""

    def __str__(self) -> str:
        return "current_step() works only inside an event facet that a worker runs"


@dataclass(frozen=True)
class StepContext:
    """The step that this code is called for."""

    run_id: str
    path: str  #: e.g. ``word_count.foreach[3].fetch``
    facet: str
    try_number: int
    #: The same for every try of this step. A service that accepts such keys makes the call once.
    idempotency_key: str
    _beat: Callable[[], bool]

    def heartbeat(self) -> bool:
        """Restart the facet's timeout.

        False: the lease is lost (the try timed out, or the step was answered from outside), and
        the result of this try will be refused. Stop.
        """
        return self._beat()


_current: ContextVar[StepContext] = ContextVar("flowengine_step")


def current_step() -> StepContext:
    """Return the step that this code is called for."""
    try:
        return _current.get()
    except LookupError:
        raise NotInAStep from None


@contextmanager
def running(task: TaskDefinition, beat: Callable[[], bool]) -> Iterator[StepContext]:
    """Make a task's step the current one."""
    context = StepContext(
        run_id=task.workflow_id,
        path=task.step_path,
        facet=task.name,
        try_number=task.try_number,
        idempotency_key=task.step_id,
        _beat=beat,
    )
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)
